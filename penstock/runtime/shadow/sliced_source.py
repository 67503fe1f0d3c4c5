"""Take the place of a source in a shadow run, and read a slice of its input: `SlicedSource`.

The run of the old program comes first, and *measures* the slice: when the file `freeze` appears,
each split ends where it is, and the number of its records since the snapshot is written down. The
run of the new program reads as many records of each split, from the same positions. A source that
can be read again returns the same records. So both programs get equal input, although no two runs
take snapshots at the same position.

For the program, the slice is its whole input. At its end all windows and timers fire, so that the
comparison does not depend on how far watermarks have come.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.type_variables import PlainValue, UserValue

#: The longest time after which a reader looks for the file `freeze`, in seconds.
FREEZE_SECONDS = 0.1


@dataclass(frozen=True)
class SliceFiles:
    """The files that describe the slice of a run.

    Arguments:
        folder: the folder of the run.
    """

    folder: Path

    @property
    def freeze(self) -> Path:
        """The file with which the slice ends, while it is measured."""
        return self.folder / "freeze"

    @property
    def limits(self) -> Path:
        """The slice to read. It does not exist if the run measures it."""
        return self.folder / "limits"

    @property
    def read(self) -> Path:
        """The file with a line for each split that the run was assigned, or has read to its end."""
        return self.folder / "read"

    def add(self, line: dict[str, Any]) -> None:
        """Add a line to what the run has read. Several processes may do so at the same time."""
        file = os.open(self.read, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(file)


def lines_of(path: Path, uid: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a slice, or only those about the source with a uid."""
    if path.exists():
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if uid is None or line["uid"] == uid:
                yield line


class SlicedSource(Source[UserValue]):
    """Reads a slice of another source, and never acknowledges anything.

    Arguments:
        source: the other source.
        uid: the uid of the source in the old program.
        folder: the folder of the run.
        measures: whether this run measures the slice.
    """

    def __init__(self, source: Source[UserValue], uid: str, folder: str, measures: bool) -> None:
        self.emits_watermarks = source.emits_watermarks
        self.has_event_times = source.has_event_times
        self._source, self._uid, self._measures = source, uid, measures
        self._files = SliceFiles(Path(folder))

    @property
    def location(self) -> object:
        """The location of the other source."""
        return self._source.location

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the other source."""
        return self._source.side_output_tags

    @property
    def reads_in_turns(self) -> bool:
        """Whether the other source has its splits read in turns."""
        return self._source.reads_in_turns

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of those splits that the slice has."""
        enumerator = self._source.create_enumerator(parallelism)
        if self._measures:
            return _MeasuringEnumerator(enumerator, self._uid, self._files)
        return _SlicedEnumerator(enumerator, self._uid, self._files)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that ends each split where the slice ends."""
        reader = self._source.create_reader(context)
        return _SlicedReader(reader, self._uid, self._files, self._measures)


class _WrappedEnumerator(SplitEnumerator):
    """Passes on what a new run needs. It removes and reports nothing: the job does so."""

    def __init__(self, enumerator: SplitEnumerator, uid: str, files: SliceFiles) -> None:
        self._enumerator, self._uid, self._files = enumerator, uid, files

    def start(self) -> None:
        self._enumerator.start()

    def snapshot(self) -> PlainValue:
        return self._enumerator.snapshot()

    def restore(self, state: PlainValue) -> None:
        self._enumerator.restore(state)

    def close(self) -> None:
        self._enumerator.close()


class _MeasuringEnumerator(_WrappedEnumerator):
    """Assigns splits until the slice ends, and writes them down."""

    @property
    def exhausted(self) -> bool:
        return self._files.freeze.exists() or self._enumerator.exhausted

    def next_split(self, subtask: int) -> Split | None:
        if self._files.freeze.exists():
            return None
        split = self._enumerator.next_split(subtask)
        if split is not None:
            self._files.add({"uid": self._uid, "assigned": split.id})
        return split


class _SlicedEnumerator(_WrappedEnumerator):
    """Assigns the splits that were assigned when the slice was measured, and no others."""

    def __init__(self, enumerator: SplitEnumerator, uid: str, files: SliceFiles) -> None:
        super().__init__(enumerator, uid, files)
        lines = lines_of(files.limits, uid)
        self._expected = {line["assigned"] for line in lines if "assigned" in line}

    @property
    def exhausted(self) -> bool:
        return not self._expected or self._enumerator.exhausted

    def next_split(self, subtask: int) -> Split | None:
        while self._expected:
            split = self._enumerator.next_split(subtask)
            if split is None:
                return None
            if split.id in self._expected:
                self._expected.discard(split.id)
                return split
        return None


class _SlicedReader(SourceReader):
    """Reads each split up to its limit, or until the slice ends."""

    def __init__(self, reader: SourceReader, uid: str, files: SliceFiles, measures: bool) -> None:
        self.blocking = reader.blocking
        self._reader, self._uid, self._files, self._measures = reader, uid, files, measures
        lines = () if measures else lines_of(files.limits, uid)
        self._limits = {line["split"]: line["records"] for line in lines if "split" in line}
        self._split = ""
        self._position: PlainValue = None
        self._records = 0
        #: The number of records that are left of the split.
        self._left = math.inf
        #: The time at which the other reader has records again, in seconds.
        self._due = 0.0

    def use_codec(self, codec: RecordCodec) -> None:
        self._reader.use_codec(codec)

    def use_wake(self, wake: Callable[[], None]) -> None:
        def woken() -> None:
            self._due = 0.0
            wake()

        self._reader.use_wake(woken)

    def open(self, split: Split, position: PlainValue) -> None:
        self._split, self._position, self._records, self._due = split.id, position, 0, 0.0
        self._left = math.inf if self._measures else self._limits.get(split.id, 0)
        if self._left:
            self._reader.open(split, position)

    def read(self, max_records: int) -> Read:
        if not self._left or (self._measures and self._files.freeze.exists()):
            return self._ended(Read([], self._position))
        waiting = self._due - time.monotonic()
        if waiting > 0:
            return Read([], self._position, wait_seconds=min(waiting, FREEZE_SECONDS))
        read = self._reader.read(int(min(max_records, self._left)))
        self._position = read.position
        self._records += len(read.records)
        self._left = max(0, self._left - len(read.records))
        if read.finished or not self._left:
            return self._ended(read)
        self._due = time.monotonic() + read.wait_seconds
        return _changed(read, wait_seconds=min(read.wait_seconds, FREEZE_SECONDS))

    def _ended(self, read: Read) -> Read:
        self._files.add({"uid": self._uid, "split": self._split, "records": self._records})
        return _changed(read, finished=True)

    def close(self) -> None:
        self._reader.close()


def _changed(read: Read, **changes: Any) -> Read:
    """Return a read of the same kind with other fields."""
    if isinstance(read, TimedRead):
        plain = Read(*read)._replace(**changes)
        return TimedRead(plain, read.timestamps, read.watermark)
    return read._replace(**changes)


def records_read(path: Path) -> dict[str, int]:
    """Return the number of records that a run has read of each source, keyed by uid."""
    found: dict[str, int] = {}
    for line in lines_of(path):
        found[line["uid"]] = found.get(line["uid"], 0) + line.get("records", 0)
    return found
