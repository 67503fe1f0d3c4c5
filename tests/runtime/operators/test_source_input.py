"""A source's feed: when it says that it has something again."""

from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.operators.source_input import SequentialSourceInput


class Later(SourceReader):
    """Has nothing, for so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def open(self, split, position):
        pass

    def read(self, max_records):
        return Read([], 0, wait_seconds=self.seconds)


def feed_at(now, reader):
    feed = SequentialSourceInput(reader, lambda: now[0], lambda: None, lambda: None)
    feed.assign(Split("only"), None)
    feed.no_more()
    return feed


def test_a_time_that_comes_before_it_is_asked_for_is_not_slept_through():
    now = [100.0]
    feed = feed_at(now, Later(0.001))
    assert feed.read(10) == []
    assert feed.wake_at == 100.001
    assert feed.read(10) is None
    # The clock goes on between the read and the question.
    now[0] = 100.002
    assert feed.wake_at == 100.001


def test_a_reader_that_is_read_in_a_thread_does_not_wake_the_task_by_the_clock():
    now = [100.0]
    reader = Later(0.001)
    reader.blocking = True
    feed = feed_at(now, reader)
    assert feed.read(10) is None
    assert feed.wake_at is None


def test_there_is_no_time_to_wake_at_without_a_split_or_a_wait():
    now = [100.0]
    feed = SequentialSourceInput(Later(0.0), lambda: now[0], lambda: None, lambda: None)
    assert feed.wake_at is None
    feed.assign(Split("only"), None)
    assert feed.read(10) == []
    assert feed.wake_at is None
