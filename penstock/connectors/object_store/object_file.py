"""Read an object by ranges, as a file that does not change.

Each request has the ETag that the object had when it was found. So a store that has another object
under this name now refuses the request, and no split has records of two objects.
"""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability
from penstock.object_store import ObjectStore, require_obstore

#: The sizes of the first and of the largest range that is requested, in bytes. A source that looks
#: at the beginning or the end of an object only does not load much of it.
_FIRST_RANGE = 1 << 18
_LARGEST_RANGE = 1 << 23


class ObjectFile:
    """An object of a store, as a file that can be opened.

    Arguments:
        store: the store.
        key: the name of the object in the store.
        size: its size, in bytes.
        etag: the ETag that it must have; "" if the store has none.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, etag: str) -> None:
        self.store, self.key, self.size, self.etag = store, key, size, etag

    def __str__(self) -> str:
        return self.store.path(self.key)

    def __lt__(self, other: ObjectFile) -> bool:
        return str(self) < str(other)

    @property
    def suffix(self) -> str:
        """The end of the object's name, such as `.gz`."""
        return PurePosixPath(self.key).suffix

    def open(self, mode: Any = "rb", buffering: int = -1) -> Any:
        """Open the object for reading bytes."""
        assert mode == "rb"
        raw = _ObjectReader(self)
        return raw if buffering == 0 else io.BufferedReader(raw, _FIRST_RANGE)

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes of a range.

        Raises:
            JobError: if the object has changed or vanished, or cannot be read.
        """
        obstore = require_obstore()
        options: dict[str, Any] = {"range": (start, end)}
        if self.etag:
            options["if_match"] = self.etag
        try:
            with self.store.naming(f"{self} cannot be read"):
                result = obstore.get(self.store.open(), self.key, options=options)
                # Some servers that are called compatible with S3 ignore If-Match.
                changed = self.etag and result.meta["e_tag"] != self.etag
                if changed or result.meta["size"] != self.size:
                    raise self._changed()
                return bytes(result.bytes())
        except obstore.exceptions.PreconditionError as error:
            raise self._changed() from error
        except FileNotFoundError as error:
            raise JobError(
                f"{self} has vanished since the job found it: restore it, or start the job afresh"
            ) from error

    def _changed(self) -> JobError:
        return JobError(
            f"{self} was written again since the job found it: it has another ETag than "
            f"{self.etag}, so its records may have changed. Restore this version, or start the job "
            f"afresh. Write new records to objects with new names",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


class _ObjectReader(io.RawIOBase):
    """Reads an object, in ranges that grow as long as it is read in order."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._position = 0
        self._range = _FIRST_RANGE
        #: The bytes of the last range, and where it begins.
        self._loaded, self._start = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).cast("B")
        if self._position >= self._file.size or not len(wanted):
            return 0
        at = self._position - self._start
        if not 0 <= at < len(self._loaded):
            self._load(len(wanted))
            at = 0
        part = self._loaded[at : at + len(wanted)]
        wanted[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _load(self, wanted: int) -> None:
        in_order = self._position == self._start + len(self._loaded)
        self._range = min(2 * self._range, _LARGEST_RANGE) if in_order else _FIRST_RANGE
        end = min(self._position + max(self._range, wanted), self._file.size)
        self._loaded, self._start = self._file.fetch(self._position, end), self._position
