"""A slice ends each split after as many records as the first run has read of it."""

import json
import math

import pytest

from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    TimedRead,
)
from penstock.runtime.shadow.sliced_source import SlicedSource, SliceFiles, records_read


class Scripted(Source):
    """Numbers without an end, in splits whose numbers begin at their payload."""

    bounded = False

    def __init__(self, splits, timed=False, waits=0.0):
        self.splits, self.timed, self.waits = splits, timed, waits
        self.notices = []

    def create_enumerator(self, parallelism):
        return ListEnumerator([Split(id, begin) for id, begin in self.splits.items()])

    def create_reader(self, context):
        return ScriptedReader(self)


class ScriptedReader(SourceReader):
    def __init__(self, source):
        self.source = source

    def use_wake(self, wake):
        self.wake = wake

    def open(self, split, position):
        self.next = split.payload if position is None else position

    def read(self, max_records):
        count = min(max_records, 3)
        numbers = list(range(self.next, self.next + count))
        self.next += count
        read = Read(numbers, self.next, wait_seconds=self.source.waits)
        return TimedRead(read, numbers, numbers[-1]) if self.source.timed else read

    def snapshot_completed(self, position):
        raise AssertionError("a shadow run acknowledges nothing")


CONTEXT = ReaderContext("numbers", 0, 1)


def reader_of(source, folder, measures, split, position=None):
    reader = SlicedSource(source, "numbers", str(folder), measures).create_reader(CONTEXT)
    reader.use_wake(lambda: None)
    reader.open(split, position)
    return reader


def read_to_end(reader, most=100):
    records = []
    for _ in range(1000):
        read = reader.read(most)
        records += read.records
        if read.finished:
            return records
    raise AssertionError("the split does not end")


def limits(folder, *lines):
    files = SliceFiles(folder)
    files.limits.write_text("".join(f"{json.dumps({'uid': 'numbers', **one})}\n" for one in lines))
    return files


def test_the_slice_ends_when_it_is_frozen(tmp_path):
    reader = reader_of(Scripted({"a": 0}), tmp_path, True, Split("a", 0), 10)
    assert reader.read(2).records == [10, 11]
    assert reader.read(9).records == [12, 13, 14]
    files = SliceFiles(tmp_path)
    files.freeze.touch()
    read = reader.read(9)
    assert read.finished and read.records == [] and read.position == 15
    assert records_read(files.read) == {"numbers": 5}


@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("timed", [False, True])
def test_the_second_run_reads_as_many_records_of_each_split(tmp_path, most, timed):
    files = limits(
        tmp_path,
        {"split": "a", "records": 7},
        {"split": "b", "records": 0},
        {"uid": "others", "split": "a", "records": 99},
    )
    reader = reader_of(Scripted({}, timed), tmp_path, False, Split("a", 0), 10)
    assert read_to_end(reader, most) == [*range(10, 17)]
    reader.open(Split("b", 0), None)
    assert read_to_end(reader) == []
    reader.open(Split("unknown", 0), None)
    assert read_to_end(reader) == []
    assert records_read(files.read) == {"numbers": 7}


def test_times_of_records_and_watermarks_are_kept(tmp_path):
    limits(tmp_path, {"split": "a", "records": 4})
    reader = reader_of(Scripted({}, timed=True), tmp_path, False, Split("a", 5))
    first, second = reader.read(100), reader.read(100)
    assert (first.timestamps, first.watermark, first.finished) == ([5, 6, 7], 7, False)
    assert (second.timestamps, second.watermark, second.finished) == ([8], 8, True)


def test_a_reader_that_waits_looks_for_the_end_of_the_slice(tmp_path):
    reader = reader_of(Scripted({}, waits=math.inf), tmp_path, True, Split("a", 0))
    read = reader.read(2)
    assert read.records == [0, 1] and 0 < read.wait_seconds < 1
    read = reader.read(2)
    assert read.records == [] and 0 < read.wait_seconds < 1, "it asked before it was woken"
    reader._reader.wake()
    assert reader.read(2).records == [2, 3]
    SliceFiles(tmp_path).freeze.touch()
    assert reader.read(2).finished


def test_only_the_splits_of_the_slice_are_assigned(tmp_path):
    source = Scripted({"a": 0, "b": 0, "c": 0, "d": 0})
    measuring = SlicedSource(source, "numbers", str(tmp_path), True).create_enumerator(1)
    measuring.start()
    assert [measuring.next_split(0).id for _ in range(2)] == ["a", "b"]
    files = SliceFiles(tmp_path)
    files.freeze.touch()
    assert measuring.next_split(0) is None and measuring.exhausted
    files.read.rename(files.limits)
    # In another order, and with a split that comes first and is not in the slice.
    other = Scripted({"x": 0, "b": 0, "c": 0, "a": 0})
    second = SlicedSource(other, "numbers", str(tmp_path), False).create_enumerator(1)
    second.start()
    assert [second.next_split(0).id for _ in range(2)] == ["b", "a"]
    assert second.next_split(0) is None and second.exhausted
    added = SlicedSource(other, "new source", str(tmp_path), False).create_enumerator(1)
    assert added.next_split(0) is None and added.exhausted
