"""`IterableSource` and `CollectionSource`: shares, waiting, errors, closing."""

import itertools
import threading
import traceback

import pytest

from penstock.connectors import CollectionSource, IterableSource, SequenceSource
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import Read, ReaderContext


def open_reader(source, position=None, subtask=0, parallelism=1):
    reader = source.create_reader(ReaderContext("uid", subtask, parallelism))
    reader.open(source.create_enumerator(parallelism).next_split(subtask), position)
    return reader


def in_thread(function):
    """Start `function` in a thread; the result is a function that waits for its outcome."""
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(function()), daemon=True)
    thread.start()

    def wait():
        thread.join(60)
        assert outcome, "the thread is stuck"
        return outcome[0]

    return wait


def test_a_factory_without_arguments_makes_one_share_for_one_reader():
    enumerator = IterableSource(lambda: [1, 2]).create_enumerator(3)
    given = [enumerator.next_split(subtask) for subtask in (2, 1, 0)]
    assert [split is None for split in given] == [True, True, False]
    assert enumerator.exhausted


def test_a_factory_with_arguments_is_called_with_the_readers_own_number():
    source = IterableSource(lambda subtask, parallelism: [(subtask, parallelism)])
    enumerator = source.create_enumerator(2)
    reader = source.create_reader(ReaderContext("uid", 1, 2))
    reader.open(enumerator.next_split(1), None)
    assert reader.read(10) == Read([(1, 2)], 1, True, 0.0)
    assert enumerator.next_split(1) is None
    assert enumerator.next_split(0) is not None


def test_after_a_change_of_parallelism_the_factory_sees_the_first_numbers():
    source = IterableSource(lambda subtask, parallelism: [(subtask, parallelism)])
    restored = source.create_enumerator(1)
    restored.restore(source.create_enumerator(2).snapshot())
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    seen = []
    for split in iter(lambda: restored.next_split(0), None):
        reader.open(split, None)
        seen += reader.read(10).records
    assert seen == [(0, 2), (1, 2)]


@pytest.mark.parametrize("factory", [[1, 2], lambda one: [one], lambda a, b, c: []])
def test_what_cannot_be_called_as_a_factory_is_refused(factory):
    with pytest.raises(GraphError):
        IterableSource(factory)


def test_a_factory_that_gives_no_iterable_is_an_error_of_the_job():
    with pytest.raises(JobError, match="must return an iterable, not int"):
        open_reader(IterableSource(lambda: 3))


def test_no_thread_is_started_for_a_sequence_or_when_told_that_nothing_waits():
    # Those of tests before may end meanwhile.
    before = set(threading.enumerate())
    for source in (
        IterableSource(lambda: range(9)),
        IterableSource(lambda: iter(range(9)), blocking=False),
    ):
        reader = open_reader(source)
        assert reader.blocking is source.blocking
        assert reader.read(5).records == [0, 1, 2, 3, 4]
        assert set(threading.enumerate()) <= before


def test_a_read_gives_what_is_there_and_does_not_wait_for_more():
    gate = threading.Event()

    def slow():
        yield 1
        yield 2
        gate.wait()
        yield 3

    reader = open_reader(IterableSource(slow))
    records = []
    while len(records) < 2:
        records += reader.read(100).records
    assert records == [1, 2]
    wait = in_thread(lambda: reader.read(100))
    gate.set()
    assert wait().records == [3]
    while not (last := reader.read(100)).finished:
        assert last.records == []
    assert last.position == 3


@pytest.mark.parametrize("blocking", [True, False])
def test_an_exception_of_the_iterable_is_raised_with_its_traceback_after_the_records(blocking):
    def failing_records():
        yield "good"
        raise OSError("the line went dead")

    reader = open_reader(IterableSource(failing_records, blocking=blocking))
    records = []
    with pytest.raises(OSError, match="went dead") as caught:
        while True:
            records += reader.read(1).records
    assert records == ["good"]
    assert "failing_records" in "".join(traceback.format_exception(caught.value))


def test_closing_wakes_a_read_that_waits_for_a_blocked_iterable():
    never = threading.Event()
    reader = open_reader(IterableSource(lambda: iter(never.wait, True)))
    wait = in_thread(lambda: reader.read(10))
    reader.close()
    assert wait() == Read([], 0, False, 0.0)
    never.set()


def test_closing_lets_a_generator_clean_up():
    cleaned = threading.Event()

    def counting():
        number = 0
        try:
            while True:
                number += 1
                yield number
        finally:
            cleaned.set()

    reader = open_reader(IterableSource(counting, bounded=False))
    assert reader.read(1).records == [1]
    reader.close()
    assert cleaned.wait(60)


def test_the_pump_runs_ahead_of_the_reader_only_so_far():
    made = []
    full = threading.Event()

    def counting():
        for number in range(1_000_000):
            made.append(number)
            if number == 16_383:
                full.set()
            yield number

    reader = open_reader(IterableSource(counting))
    assert full.wait(60)
    assert reader.read(1).records == [0]
    assert len(made) <= 16_386
    reader.close()


@pytest.mark.parametrize("factory", [lambda: [1, 2], lambda: iter([1, 2])])
@pytest.mark.parametrize("blocking", [True, False])
def test_an_iterable_that_is_shorter_than_before_is_an_error(factory, blocking):
    with pytest.raises(JobError, match="fewer records this time than the 3"):
        open_reader(IterableSource(factory, blocking=blocking), position=3).read(1)


def test_a_collection_must_be_iterable_and_the_same_when_resumed():
    with pytest.raises(GraphError, match="not int"):
        CollectionSource(3)
    split = CollectionSource("abc").create_enumerator(1).next_split(0)
    reader = CollectionSource("ab").create_reader(ReaderContext("uid", 0, 1))
    with pytest.raises(JobError, match="has 2 records"):
        reader.open(split, 1)


def test_an_empty_collection_has_no_splits():
    assert CollectionSource([]).create_enumerator(4).next_split(0) is None


def test_a_long_sequence_has_more_ranges_than_readers():
    enumerator = SequenceSource(1, 10_000_000).create_enumerator(2)
    splits = list(iter(lambda: enumerator.next_split(0), None))
    assert len(splits) == 8
    assert splits[0].payload[0] == 1
    assert splits[-1].payload[1] == 10_000_001


@pytest.mark.parametrize("limits", [(2, 1), (0.0, 1), (True, 2), (0, 2**63 - 1)])
def test_limits_that_make_no_sequence_are_refused(limits):
    with pytest.raises(GraphError):
        SequenceSource(*limits)


def changing():
    row = {}
    for n in range(5):
        row["n"] = n
        yield row


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("at_once", [1, 10])
def test_an_object_that_is_changed_after_it_was_given_is_copied(blocking, at_once):
    reader = open_reader(IterableSource(changing, blocking=blocking))
    records = []
    while len(records) < 5:
        records += reader.read(at_once).records
    assert records == [{"n": n} for n in range(5)]
    reader.close()


def test_objects_that_come_round_are_given_as_they_are():
    reader = open_reader(
        IterableSource(lambda: itertools.cycle([{"n": 0}, {"n": 1}]), blocking=False)
    )
    assert [row["n"] for row in reader.read(5).records] == [0, 1, 0, 1, 0]
    reader = open_reader(IterableSource(lambda: [{"n": 0}] * 3))
    assert len(reader.read(5).records) == 3
