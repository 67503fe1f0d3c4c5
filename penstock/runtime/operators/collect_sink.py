"""Bring the records of a stream to the program that runs the job (`execute_and_collect`).

A sink in two phases like any other: writers spool encoded batches to files, the committer gives
them their final names, and the client reads those in order and removes them. So what the program
sees is exactly once as well, after each snapshot.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.runtime.serialization.codec import Codec

__all__ = ["CollectSink", "CollectWriter", "read_committed"]

_LENGTH = struct.Struct(">I")
DONE = ".done"
_NAME = re.compile(r"[0-9]{12,}-[0-9]{5,}-[0-9]{4,}")
BUFFER_BYTES = 1 << 18


class CollectWriter(SinkWriter):
    """Spools batches. The engine gives it a codec before its first batch.

    Arguments:
        folder: the spool.
        context: where it runs.
    """

    def __init__(self, folder: Path, context: WriterContext) -> None:
        self._folder = folder
        self._context = context
        self._codec: Codec
        self._file: BinaryIO | None = None
        self._files = 0

    def use_codec(self, codec: Codec) -> None:
        """Encode records with the codec of the job, which the program does not have."""
        self._codec = codec

    def write(self, batch: list[Any]) -> None:
        """Encode a batch into the file that is open.

        Not kept in memory: while the disk is busy with one snapshot, what a fast source makes
        meanwhile would have no bound.
        """
        if self._file is None:
            name = f"open-{self._context.subtask}-{self._context.attempt}-{self._files}"
            self._file = (self._folder / name).open("wb", buffering=BUFFER_BYTES)
            self._files += 1
        data = self._codec.encode_batch(batch)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Begin another file; the current one is finished off the event loop."""
        file, self._file = self._file, None
        if file is None:
            return None
        name = f"{snapshot:012d}-{self._context.subtask:05d}-{self._context.attempt:04d}"

        def finish() -> list[Any]:
            file.close()
            Path(file.name).rename(self._folder / f"{name}.staged")
            return [name]

        return finish

    def close(self) -> None:
        """Discard the output since the last barrier."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _CollectCommitter(Committer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, committables: list[Committable]) -> None:
        for item in committables:
            # From a manifest: it must not lead out of the folder.
            if not isinstance(item.payload, str) or not _NAME.fullmatch(item.payload):
                raise JobError(f"{item.payload!r} is no name of collected output")
            staged = self._folder / f"{item.payload}.staged"
            # Not there any more: it was committed before, and read and removed since.
            if staged.exists():
                staged.replace(self._folder / f"{item.payload}{DONE}")


class CollectSink(Sink):
    """Collects into a folder that the client reads.

    Arguments:
        folder: an existing folder on this machine.
    """

    exactly_once = True

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that spools batches to files."""
        return CollectWriter(Path(self.folder), context)

    def create_committer(self) -> Committer:
        """Return a committer that gives spooled files their final names."""
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
