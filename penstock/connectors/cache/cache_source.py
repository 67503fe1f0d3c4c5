"""Read the records of a cached stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from penstock.connectors.cache.cache_sink import COMPLETE, DONE, LENGTH
from penstock.dataflow.errors import JobError
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)

__all__ = ["CacheSource"]


class CacheSource(Source):
    """Reads the files of a cached stream; each file is a split.

    Arguments:
        folder: the folder of the files.
        timed: whether the files have pairs (event time, record).
        record_functions: the functions that made the records; they mention the record classes.
    """

    def __init__(self, folder: str, timed: bool, record_functions: list[Any]) -> None:
        self.folder, self.timed = folder, timed
        self.has_event_times = timed
        self.record_functions = record_functions

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of the files."""
        del parallelism
        folder = Path(self.folder)
        if not (folder / COMPLETE).exists():
            raise JobError(
                f"the records of a cached stream are not on this machine any more ({folder}): call "
                f"invalidate() on the stream, and run the program again"
            )
        paths = sorted(folder.glob(f"*{DONE}"))
        return ListEnumerator([Split(path.name, str(path)) for path in paths])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of files."""
        del context
        return _CacheReader(self.timed)


class _CacheReader(SourceReader):
    """Reads batches. A position is a list [offset of a batch, number of its records read]."""

    _codec: RecordCodec
    _reading: RecordCodec
    _file: BinaryIO | None = None
    #: The offset of the batch, and the index of its next record.
    _offset: int
    _begin: int

    def __init__(self, timed: bool) -> None:
        self._timed = timed

    def use_codec(self, codec: RecordCodec) -> None:
        self._codec = codec

    def open(self, split: Split, position: Any) -> None:
        self.close()
        self._file = Path(split.payload).open("rb")  # noqa: SIM115 - `close` closes it
        self._reading = self._codec.reading(json.loads(self._next() or b"[]"))
        self._offset, self._begin = position or (self._file.tell(), 0)
        self._file.seek(self._offset)
        self._batch = self._next_batch()

    def read(self, max_records: int) -> Read:
        assert self._file is not None
        begin = self._begin
        records = self._batch[begin : begin + max_records]
        self._begin += len(records)
        if self._begin >= len(self._batch):
            self._offset, self._begin = self._file.tell(), 0
            self._batch = self._next_batch()
        read = Read(records, [self._offset, self._begin], finished=not self._batch)
        if not self._timed:
            return read
        times = [time for time, _ in records]
        return TimedRead(read._replace(records=[record for _, record in records]), times)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_batch(self) -> list[Any]:
        data = self._next()
        batch: list[Any] = [] if data is None else self._reading.decode_batch(data)
        return batch

    def _next(self) -> bytes | None:
        assert self._file is not None
        header = self._file.read(LENGTH.size)
        return self._file.read(LENGTH.unpack(header)[0]) if header else None
