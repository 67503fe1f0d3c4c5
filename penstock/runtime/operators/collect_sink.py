"""Bring the records of a stream to the program that runs the job (`execute_and_collect`).

The sink commits in two phases. Writers write encoded batches to files, and the committer gives the
files their final names. The client reads the committed files in order and removes them. So the
program receives each record exactly once, after the snapshot that commits it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from penstock.dataflow.errors import JobError
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.runtime.serialization.codec import Codec

_LENGTH = struct.Struct(">I")
DONE = ".done"
_NAME = re.compile(r"[0-9]{12,}-[0-9]{5,}-[0-9]{4,}")
BUFFER_BYTES = 1 << 18


class CollectWriter(SinkWriter):
    """Writes batches to files. The engine sets its codec before the first batch.

    Arguments:
        folder: the folder for the files.
        context: the place of the writer in the job.
    """

    def __init__(self, folder: Path, context: WriterContext) -> None:
        self._folder = folder
        self._context = context
        self._codec: RecordCodec
        self._file: BinaryIO | None = None
        #: The files of earlier snapshots that are not finished yet.
        self._unfinished: set[BinaryIO] = set()
        self._files = 0

    def use_codec(self, codec: RecordCodec) -> None:
        """Set the codec of the job, which encodes the records.

        The engine passes it, because the program that creates the sink does not have it.
        """
        self._codec = codec

    def write(self, batch: list[Any]) -> None:
        """Encode a batch and append it to the open file.

        The writer does not collect batches in memory. A fast source would fill the memory while
        the disk is busy with a snapshot.
        """
        if self._file is None:
            name = f"open-{self._context.subtask}-{self._context.attempt}-{self._files}"
            self._file = (self._folder / name).open("wb", buffering=BUFFER_BYTES)
            self._files += 1
        data = self._codec.encode_batch(batch)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Detach the current file, so that the next batch begins another one.

        Returns:
            A function that finishes the file and returns its name, or None if there is no file. The
            engine calls it off the event loop, because it blocks.
        """
        file, self._file = self._file, None
        if file is None:
            return None
        self._unfinished.add(file)
        name = f"{snapshot:012d}-{self._context.subtask:05d}-{self._context.attempt:04d}"

        def finish() -> list[Any]:
            self._unfinished.discard(file)
            file.close()
            Path(file.name).rename(self._folder / f"{name}.staged")
            return [name]

        return finish

    def close(self) -> None:
        """Close all files that are not finished. Their output is not committed."""
        for file in (self._file, *self._unfinished):
            if file is not None:
                file.close()
        self._file = None
        self._unfinished.clear()


class _CollectCommitter(Committer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, committables: list[Committable]) -> None:
        for item in committables:
            # The name comes from a manifest. A damaged name must not point outside of the folder.
            if not isinstance(item.payload, str) or not _NAME.fullmatch(item.payload):
                raise JobError(f"{item.payload!r} is no name of collected output")
            staged = self._folder / f"{item.payload}.staged"
            # If the file does not exist, it was committed before, and the client has removed it.
            if staged.exists():
                staged.replace(self._folder / f"{item.payload}{DONE}")


class CollectSink(Sink):
    """Writes records to files in a folder, from which the client reads them.

    Arguments:
        folder: an existing folder on this machine.
    """

    exactly_once = True

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that writes batches to files."""
        return CollectWriter(Path(self.folder), context)

    def create_committer(self) -> Committer:
        """Return a committer that gives the written files their final names."""
        return _CollectCommitter(Path(self.folder))


def read_committed(folder: Path, codec: Codec) -> Iterator[Any]:
    """Yield the records of all committed files by snapshot and subtask, and remove the files."""
    for path in sorted(folder.glob(f"*{DONE}")):
        data = path.read_bytes()
        path.unlink()
        start = 0
        while start < len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            start += _LENGTH.size
            yield from codec.decode_batch(data[start : start + length])
            start += length
