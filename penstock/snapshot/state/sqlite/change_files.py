"""The table files of a database in SQLite: the changes of its rows, in the order of their writes.

The file of SQLite itself changes in place, so snapshots could not share it. Instead, each write is
also appended to a *change file*. A checkpoint ends the file and links it, and the next write begins
another one. A database is restored by making all changes again.

The name of a change file is its number with six digits or more, and `.changes`. The files are read
in the order of their numbers. A file is a sequence of msgpack values:

    "penstock changes 1"             the header; it may occur again later in the file
    [change, ...]                    the changes of one batch

    change := [key, value]           a row is put
            | [key, nil]             a row is deleted
            | [begin, nil, end]      all rows with begin <= key < end are deleted

So two files may be joined by writing one behind the other. Small files are joined, because each
snapshot links all files. When the files have more than about twice the bytes of the live rows, one
file with all rows replaces them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO

import msgpack

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.cold.checkpoint import link_or_copy
from penstock.snapshot.state.cold.database import CheckpointContent
from penstock.snapshot.storage.filesystem.durable_files import sync_file

CHANGES_SUFFIX = ".changes"
#: A key and its value, which is None if the row is deleted; or the begin of a range, None, and its
#: end.
Change = Sequence[object]
_HEADER_TEXT = "penstock changes 1"
_HEADER: bytes = msgpack.packb(_HEADER_TEXT)
#: The number of small files from which on they are joined.
_JOINED_FILES = 8
# With 1.5, 4,000 files of one size become 15 at most, and each change is written 6 times. With 1,
# equal piles would never be joined, and with 3 each change is written 9 times.
_LARGEST_SHARE = 1.5
_BUFFER_BYTES = 256 * 1024


def read_changes(path: Path) -> Iterator[list[Change]]:
    """Yield the batches of a change file.

    Raises:
        OSError: if the file cannot be read.
        StoreError: if it is not a complete change file.
    """
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file, max_buffer_size=0)
        try:
            for value in unpacker:
                if value != _HEADER_TEXT:
                    if not isinstance(value, list):
                        raise ValueError("it has a part that is no batch of changes")
                    yield value
        except (ValueError, msgpack.UnpackException) as error:
            raise StoreError(f"a file of keyed state cannot be decoded: {error}", path) from error
        # The unpacker ends without an error if the last value is incomplete.
        if unpacker.tell() != os.fstat(file.fileno()).st_size:
            raise StoreError("the end of a file of keyed state is missing", path)


class ChangeFiles:
    """Writes the change files of one database, and links them into checkpoints.

    Arguments:
        folder: the folder of the database. It may have the change files of a checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        paths = sorted(folder.glob(f"*{CHANGES_SUFFIX}"), key=lambda path: int(path.stem))
        #: The size of each complete file in bytes, keyed by name, in the order of the numbers.
        self._complete = {path.name: path.stat().st_size for path in paths}
        self._number = int(paths[-1].stem) if paths else 0
        self._file: IO[bytes] | None = None
        self._error: OSError | None = None

    def names(self) -> list[str]:
        """Return the names of all complete files, in the order in which they are read."""
        return list(self._complete)

    def complete_bytes(self) -> int:
        """Return the size of all complete files, in bytes."""
        return sum(self._complete.values())

    def append(self, changes: list[Change]) -> int:
        """Append a batch of changes, and return its number of bytes.

        Raises:
            OSError: if the file cannot be written.
        """
        data: bytes = msgpack.packb(changes)
        self._open_file().write(data)
        return len(data)

    def begin_file(self) -> str:
        """Begin a new file if there is no incomplete one, and return its name."""
        self._open_file()
        return self._name()

    def incomplete_bytes(self, name: str) -> bytes | None:
        """Return the content of the incomplete file; None if it has another name."""
        if self._file is None or name != self._name():
            return None
        self._file.flush()
        return (self._folder / name).read_bytes()

    def complete(self) -> None:
        """Complete the file that is written, and make its content durable. This is slow.

        A file without changes is left open. But there is at least one complete file afterwards.

        Raises:
            OSError: if the file cannot be written. All later calls also fail, because it is unknown
                which part of the file is on the disk.
        """
        if self._error is not None:
            raise self._error
        if self._complete and (self._file is None or self._file.tell() == len(_HEADER)):
            return
        try:
            file = self._open_file()
            sync_file(file)
        except OSError as error:
            self._error = error
            raise
        self._complete[self._name()] = file.tell()
        file.close()
        self._file = None

    def join_small(self) -> None:
        """Join the newest files if they are many. This is slow, and needs all files complete.

        The run of files to join begins with the newest one. An older file belongs to it if it is
        not much larger than all newer ones together. So each change is copied a few times only.
        """
        newest_first = list(reversed(self._complete.items()))
        totals = accumulate(size for _, size in newest_first)
        count = 1
        for (_, size), newer in zip(newest_first[1:], totals, strict=False):
            if size > _LARGEST_SHARE * newer:
                break
            count += 1
        if count >= _JOINED_FILES:
            names = self.names()[-count:]
            with self._replacing(names) as joined:
                for name in names:
                    with (self._folder / name).open("rb") as file:
                        shutil.copyfileobj(file, joined)

    def replace_all(self, batches: Iterable[list[Change]]) -> None:
        """Replace all files by one file with all rows. This is slow, and needs all files complete.

        Arguments:
            batches: all rows of the database.
        """
        with self._replacing(self.names()) as file:
            for batch in batches:
                file.write(msgpack.packb(batch))

    def link(self, folder: Path) -> CheckpointContent:
        """Link all complete files into a new folder. This is slow.

        Raises:
            OSError: if the folder or a file in it cannot be made.
        """
        folder.mkdir()
        copied = [
            name for name in self._complete if not link_or_copy(self._folder / name, folder / name)
        ]
        return CheckpointContent(dict(self._complete), frozenset(copied), {})

    def close(self) -> None:
        """Close the incomplete file."""
        if self._file is not None:
            # If the disk is full, the buffer cannot be written. Nothing reads it after `close`.
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _name(self) -> str:
        return f"{self._number:06}{CHANGES_SUFFIX}"

    def _new_file(self) -> IO[bytes]:
        self._number += 1
        file = (self._folder / self._name()).open("xb", buffering=_BUFFER_BYTES)
        file.write(_HEADER)
        return file

    def _open_file(self) -> IO[bytes]:
        if self._file is None:
            self._file = self._new_file()
        return self._file

    @contextmanager
    def _replacing(self, names: list[str]) -> Iterator[IO[bytes]]:
        """Replace complete files by a new file, which the block writes.

        If the block fails, the complete files stay, and the new one is removed.
        """
        with self._new_file() as file:
            made = self._name()
            try:
                yield file
                sync_file(file)
            except BaseException:
                (self._folder / made).unlink(missing_ok=True)
                raise
            # The new file is complete before an old one is removed: each checkpoint has all rows.
            self._complete[made] = file.tell()
        for name in names:
            del self._complete[name]
            # A file that cannot be removed is not linked any more, and so is harmless.
            with suppress(OSError):
                (self._folder / name).unlink()
