"""`GeneratorSource`: indices, rates under a clock of the test's own, slices, errors."""

import pytest

from penstock.connectors import GeneratorSource
from penstock.dataflow.errors import GraphError
from penstock.dataflow.source import Read, ReaderContext, Split


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def open_reader(source, subtask=0, parallelism=1, position=None):
    reader = source.create_reader(ReaderContext("uid", subtask, parallelism))
    reader.open(source.create_enumerator(parallelism).next_split(subtask), position)
    return reader


def test_readers_interleave_the_indices_and_stop_at_the_count():
    source = GeneratorSource(str, 7)
    assert open_reader(source, 0, 3).read(99) == Read(["0", "3", "6"], 9, True, 0.0)
    assert open_reader(source, 1, 3).read(99) == Read(["1", "4"], 7, True, 0.0)
    assert open_reader(source, 2, 3).read(1) == Read(["2"], 5, False, 0.0)
    assert open_reader(source, 2, 3, position=8).read(1) == Read([], 8, True, 0.0)


def test_it_is_bounded_only_with_a_count():
    assert GeneratorSource(str, 3).bounded
    assert not GeneratorSource(str).bounded


def test_a_thousand_records_a_second_come_one_by_one_each_millisecond():
    clock = Clock()
    reader = open_reader(GeneratorSource(int, records_per_second=1000, clock=clock))
    began, times = clock.now, []
    for _ in range(2000):
        read = reader.read(4096)
        assert len(read.records) <= 1
        times += [clock.now] * len(read.records)
        clock.now += read.wait_seconds
    assert len(times) == 2000
    assert all(abs(at - began - i / 1000) < 1e-6 for i, at in enumerate(times))


@pytest.mark.parametrize("rate", [0.5, 333, 20_000, 1_000_000])
def test_any_rate_is_kept_over_time_and_shared_by_the_readers(rate):
    clock = Clock()
    reader = open_reader(GeneratorSource(int, records_per_second=rate, clock=clock), 1, 2)
    began, made = clock.now, 0
    while clock.now < began + 4:
        read = reader.read(4096)
        made += len(read.records)
        clock.now += read.wait_seconds
    assert made == pytest.approx(4 * rate / 2, rel=0.01, abs=1)


def test_late_wake_ups_do_not_lower_the_rate():
    clock = Clock()
    reader = open_reader(GeneratorSource(int, records_per_second=1000, clock=clock))
    made = 0
    for _ in range(1000):
        made += len(reader.read(4096).records)
        clock.now += 0.0037
    assert made == pytest.approx(3700, abs=5)


def test_after_a_long_pause_a_second_is_caught_up_with_at_once_and_then_at_twice_the_rate():
    clock = Clock()
    reader = open_reader(GeneratorSource(int, records_per_second=100, clock=clock))
    reader.read(4096)
    clock.now += 60
    assert len(reader.read(4096).records) == 100
    assert reader.read(4096).records == []
    made, began = 101, clock.now
    while clock.now < began + 10:
        read = reader.read(4096)
        assert len(read.records) <= 2
        made += len(read.records)
        clock.now += read.wait_seconds
    assert made == pytest.approx(101 + 10 * 200, abs=5)
    while clock.now < began + 90:
        read = reader.read(4096)
        made += len(read.records)
        clock.now += read.wait_seconds
    assert made == pytest.approx((clock.now - 100) * 100, abs=2)
    assert read.wait_seconds == pytest.approx(0.01)


def test_two_sources_stay_in_step_whatever_each_loses_at_restarts():
    clock = Clock()
    rates = (100.0, 7.0)
    sources = [GeneratorSource(int, records_per_second=rate, clock=clock) for rate in rates]
    splits = [source.create_enumerator(1).next_split(0) for source in sources]
    positions = [None, None]
    for attempt in range(20):
        readers = []
        for number, source in enumerate(sources):
            clock.now += 1.5 * (number + attempt % 3)  # each opens at another time
            readers.append(source.create_reader(ReaderContext("uid", 0, 1)))
            readers[-1].open(splits[number], positions[number])
        until = clock.now + 60
        while clock.now < until:
            reads = [reader.read(4096) for reader in readers]
            positions = [read.position for read in reads]
            clock.now += min(max(read.wait_seconds, 0.001) for read in reads)
        times = [position / rate for position, rate in zip(positions, rates, strict=True)]
        assert abs(times[0] - times[1]) < 0.2, f"they have drifted apart after {attempt} restarts"
        assert abs(times[0] - (clock.now - 100)) < 0.2


def test_a_clock_that_was_set_back_does_not_stop_the_source():
    clock = Clock()
    source = GeneratorSource(int, records_per_second=10, clock=clock)
    split = source.create_enumerator(1).next_split(0)
    clock.now -= 86_400
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    reader.open(split, 50)
    assert reader.read(10) == Read([50], 51, False, pytest.approx(0.1))


def test_a_split_of_an_older_snapshot_begins_its_schedule_when_it_is_opened():
    clock = Clock()
    source = GeneratorSource(int, records_per_second=10, clock=clock)
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    reader.open(Split("0", [0, 1]), 50)
    assert reader.read(10) == Read([50], 51, False, pytest.approx(0.1))


def test_a_source_without_a_rate_has_the_splits_that_it_had():
    assert GeneratorSource(int).create_enumerator(2).next_split(1).payload == [1, 2]


def test_a_slow_function_is_called_in_short_slices():
    clock = Clock()

    def slow(index):
        clock.now += 0.001
        return index

    reader = open_reader(GeneratorSource(slow, clock=clock))
    sizes = [len(reader.read(4096).records) for _ in range(5)]
    assert sizes[-1] <= 10


def test_a_quick_function_is_soon_called_for_whole_batches():
    reader = open_reader(GeneratorSource(int, clock=Clock()))
    sizes = [len(reader.read(4096).records) for _ in range(6)]
    assert sizes[-1] == 4096


def test_an_exception_of_the_function_says_for_which_index():
    reader = open_reader(GeneratorSource(lambda index: 1 // (index - 5)), 1, 2)
    with pytest.raises(ZeroDivisionError) as caught:
        reader.read(100)
    assert "index 5" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "arguments",
    [("no function",), (str, -1), (str, 1.5), (str, 1, 0), (str, None, float("inf"))],
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(GraphError):
        GeneratorSource(*arguments)


def test_an_object_that_is_given_again_is_copied():
    row = {}
    reader = open_reader(GeneratorSource(lambda n: row.update(n=n) or row, 10))
    assert reader.read(5).records == [{"n": n} for n in range(5)]
    assert reader.read(5).records == [{"n": n} for n in range(5, 10)]
