"""Write the records of a cached stream to files, exactly once."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from penstock.dataflow.errors import JobError
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext

__all__ = ["COMPLETE", "DONE", "LENGTH", "CacheSink"]

#: The name of the file that is created when all records are stored.
COMPLETE = "complete"
#: The suffix of the names of published files.
DONE = ".records"
LENGTH = struct.Struct(">I")


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
