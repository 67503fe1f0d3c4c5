"""Keep the records of a stream for later executions of the same environment.

The first execution writes the records to files, exactly once. Later executions read the files.
"""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import ProcessFunction
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
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
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

#: The name of the file that is created when all records are stored.
COMPLETE = "complete"
#: The suffix of the names of published files.
DONE = ".records"
LENGTH = struct.Struct(">I")


class RecordCache:
    """Stores the records of a cached stream. It is empty until the first execution has ended.

    An execution that finds no stored records writes them into a new folder. So the output of a
    failed execution is never read. The folders are removed with the cache, or when the process of
    the program ends.

    Arguments:
        timed: whether the records have event times, which are then kept, too.
        record_functions: the functions that make the records; they mention the record classes.
    """

    def __init__(self, timed: bool, record_functions: list[Any]) -> None:
        self.timed = timed
        self._record_functions = record_functions
        self._folder: TemporaryFolder | None = None
        self._runs = 0

    @property
    def is_stored(self) -> bool:
        """Whether an execution has written all records."""
        return self._runs > 0 and (self._run() / COMPLETE).exists()

    def with_timestamps(self) -> ProcessFunction:
        """Return a function that emits pairs (event time, record)."""
        return WithTimestamp()

    def sink(self, resumed: bool) -> CacheSink:
        """Return a sink that writes the records of the next execution.

        Arguments:
            resumed: whether the execution resumes from a snapshot. It has not all records then, so
                an execution after it computes them again.
        """
        if self._folder is None:
            self._folder = TemporaryFolder("cache")
            weakref.finalize(self, self._folder.remove)
        self._runs += 1
        self._run().mkdir()
        return CacheSink(str(self._run()), resumed)

    def source(self) -> CacheSource:
        """Return a source that reads the stored records."""
        return CacheSource(str(self._run()), self.timed, self._record_functions)

    def invalidate(self) -> None:
        """Forget the records."""
        if self._folder is not None:
            self._folder.remove()
        self._folder, self._runs = None, 0

    def _run(self) -> Path:
        assert self._folder is not None
        return self._folder.path / f"run-{self._runs}"


class WithTimestamp(ProcessFunction):
    """Emits pairs (event time, record)."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        """Emit a record with its event time."""
        time = ctx.timestamp()
        yield NO_TIMESTAMP if time is None else time, value


class CacheSink(Sink):
    """Writes encoded batches to files in a folder.

    A file begins with the schemas of the record classes. The encoded batches follow. Each batch is
    preceded by its length.

    Arguments:
        folder: an existing folder on this machine.
        resumed: whether the job resumes from a snapshot. The folder then lacks the records from
            before the snapshot, so it is never complete.
    """

    exactly_once = True

    def __init__(self, folder: str, resumed: bool = False) -> None:
        self.folder, self.resumed = folder, resumed

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer of files."""
        return _CacheWriter(Path(self.folder), context)

    def create_committer(self) -> Committer:
        """Return a committer that gives files their final names."""
        return _CacheCommitter(Path(self.folder), self.resumed)


class _CacheWriter(SinkWriter):
    _codec: RecordCodec

    def __init__(self, folder: Path, context: WriterContext) -> None:
        self._folder, self._context = folder, context
        self._file: BinaryIO | None = None
        #: The files of earlier snapshots that are not finished yet.
        self._unfinished: set[BinaryIO] = set()

    def use_codec(self, codec: RecordCodec) -> None:
        self._codec = codec

    def write(self, batch: list[Any]) -> None:
        if self._file is None:
            name = f"open-{self._context.subtask}-{self._context.attempt}"
            self._file = (self._folder / name).open("wb")
            self._append(json.dumps(self._codec.schemas()).encode())
        self._append(self._codec.encode_batch(batch))

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(LENGTH.pack(len(data)))
        self._file.write(data)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        file, self._file = self._file, None
        if file is None:
            return None
        # The file is renamed now, because the next batch opens a new file under the old name.
        name = f"{snapshot:012d}-{self._context.subtask:05d}-{self._context.attempt:05d}"
        Path(file.name).rename(self._folder / f"{name}.staged")
        self._unfinished.add(file)

        def finish() -> list[Any]:
            self._unfinished.discard(file)
            file.close()
            return [name]

        return finish

    def close(self) -> None:
        for file in (self._file, *self._unfinished):
            if file is not None:
                file.close()
        self._file = None
        self._unfinished.clear()


class _CacheCommitter(Committer):
    def __init__(self, folder: Path, resumed: bool) -> None:
        self._folder, self._resumed = folder, resumed

    def commit(self, committables: list[Committable]) -> None:
        for item in committables:
            staged = self._folder / f"{item.payload}.staged"
            # If the staged file does not exist, an earlier call has published it.
            if staged.exists():
                staged.replace(staged.with_suffix(DONE))

    def finish(self, lineage: str, uid: str) -> None:
        del lineage, uid
        if not self._folder.exists():
            raise JobError(f"the folder of a cached stream is gone: {self._folder}")
        if not self._resumed:
            (self._folder / COMPLETE).touch()


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
