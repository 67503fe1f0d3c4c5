"""A source that reads files, which may be compressed with gzip.

The enumerator lists the files once, when the job starts. Files that are created later are not read.
Large plain files of lines are divided into byte ranges, which several readers share.

A file must not change while the job reads it. The enumerator records its size, its modification
time, and a checksum of its first and last bytes. The reader compares these values when it opens the
file. `file_cursors.py` reads the files, and `file_formats.py` converts lines to records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic

from penstock.connectors.file_cursors import CsvCursor, Cursor, GzipLineCursor, LineCursor
from penstock.connectors.file_formats import CsvRows, FileFormat, LineFormat, TextLines
from penstock.connectors.folders import list_files, local_path
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import T

__all__ = ["FileSource", "ends_of", "unreadable"]

#: The number of bytes at each end of a file that the checksum for `verify_unchanged` includes.
_END_BYTES = 4096


class FileSource(Source[T], Generic[T]):
    """Reads the records of files.

    A path names a file, a folder, or a glob such as `logs/**/*.jsonl.gz`. Folders are searched to
    any depth. In folders and globs, names that begin with `_` or `.` are skipped. Files whose names
    end in `.gz` are decompressed. The files of each path are read in the order of their names. With
    parallelism 1, the records have the same order.

    In plain files of lines, the position is a byte offset. In gzip and CSV files, it is a number of
    lines or rows. There, a resumed job reads the file from its beginning and skips that number.

    Arguments:
        paths: a path or a list of paths, on a file system that all workers see.
        format: the format of the files: `TextLines()`, `JsonLines()`, `CsvRows(...)`, or an
            instance of your own subclass of `LineFormat`.
        split_bytes: the size of a byte range, in bytes. Larger plain files of lines are divided
            into ranges of this size, so that several readers share them.
        verify_unchanged: whether the reader raises an error if a file was changed after it was
            listed. A file with a new modification time counts as changed if its size is the same,
            or if its first or last bytes, up to the listed size, differ. Set this to False if
            workers see copies of the files. A file that became shorter is always an error. Lines
            that are appended after the listing may be missed.

    Raises:
        GraphError: if there is no path, or an argument has the wrong type or value.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: FileFormat[T] | None = None,
        *,
        split_bytes: int = 16 << 20,
        verify_unchanged: bool = True,
    ) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise GraphError("a file source needs at least one path")
        chosen: Any = TextLines() if format is None else format
        if not isinstance(chosen, (LineFormat, CsvRows)):
            raise GraphError(
                f"the format of a file source is TextLines(), JsonLines(), CsvRows() or another "
                f"LineFormat, not {chosen!r}"
            )
        if split_bytes < 1:
            raise GraphError(f"split_bytes is a positive number of bytes, not {split_bytes!r}")
        self.paths = [local_path(path) for path in given]
        self.format = chosen
        self.split_bytes = split_bytes
        self.verify_unchanged = verify_unchanged

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split for each file or byte range."""
        del parallelism
        return _FileEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the records of these splits."""
        del context
        return _FileReader(self.format, self.verify_unchanged)

    def validate(self) -> None:
        """Check that each path names at least one file.

        Raises:
            GraphError: if a path names no file.
        """
        for path in self.paths:
            try:
                list_files(path)
            except JobError as error:
                raise GraphError(error.message) from None


class _FileEnumerator(ListEnumerator):
    """Lists the files when a run starts without a snapshot, and assigns their splits."""

    def __init__(self, source: FileSource) -> None:
        super().__init__()
        self._source = source

    def start(self) -> None:
        # The paths are keys of a dict, so that a file is read once even if two paths contain it.
        files = {path: None for given in self._source.paths for path in list_files(given)}
        self.splits = [split for path in files for split in self._splits_of(path)]

    def _splits_of(self, path: Path) -> list[Split]:
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        size = status.st_size
        step = size
        ends = ends_of(path, size) if self._source.verify_unchanged else ""
        if isinstance(self._source.format, LineFormat) and path.suffix != ".gz":
            step = self._source.split_bytes
        return [
            Split(
                f"{path}:{start}",
                {
                    "path": str(path),
                    "start": start,
                    "end": min(start + step, size),
                    "size": size,
                    "mtime_ns": status.st_mtime_ns,
                    "ends": ends,
                },
            )
            for start in range(0, size, max(step, 1))
        ]


class _FileReader(SourceReader):
    """Reads the records of a split, with the cursor that suits the format and the file."""

    def __init__(self, format: FileFormat, verify_unchanged: bool) -> None:
        self._format = format
        self._verify_unchanged = verify_unchanged
        self._path = Path()
        self._cursor: Cursor | None = None

    def open(self, split: Split, position: Any) -> None:
        self.close()
        payload = split.payload
        self._path = path = Path(payload["path"])
        try:
            self._check(payload)
            if isinstance(self._format, CsvRows):
                self._cursor = CsvCursor(path, self._format, position)
            elif not isinstance(self._format, LineFormat):
                raise TypeError(self._format)
            elif path.suffix == ".gz":
                self._cursor = GzipLineCursor(path, self._format, position)
            else:
                start, end = payload["start"], payload["end"]
                self._cursor = LineCursor(path, self._format, start, end, position)
        except OSError as error:
            raise unreadable(path, error) from error

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        try:
            return self._cursor.read(max_records)
        except OSError as error:
            raise unreadable(self._path, error) from error

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _check(self, payload: dict[str, Any]) -> None:
        """Check that the file has not changed since the enumerator listed it.

        Raises:
            JobError: if the file is shorter, or `verify_unchanged` is set and it was changed.
        """
        status = self._path.stat()
        size = payload["size"]
        if status.st_size < size:
            raise JobError(
                f"{self._path} shrank from {size} to {status.st_size} bytes since the job listed "
                f"it: restore it, or start the job afresh"
            )
        if self._verify_unchanged and self._is_rewritten(status, payload):
            raise JobError(
                f"{self._path} was written to since the job listed it, so its records may have "
                f"changed: start the job afresh, or set verify_unchanged=False"
            )

    def _is_rewritten(self, status: os.stat_result, payload: dict[str, Any]) -> bool:
        if status.st_mtime_ns == payload["mtime_ns"]:
            return False
        size = payload["size"]
        # Lines that are appended do not change the bytes up to the listed size. Snapshots of
        # Penstock 0.1 have no checksum of the first and last bytes.
        ends = payload.get("ends")
        return status.st_size == size or (ends is not None and ends != ends_of(self._path, size))


def ends_of(path: Path, size: int) -> str:
    """Return a checksum of the first and the last bytes among the first `size` bytes of a file.

    Raises:
        JobError: if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.blake2b(file.read(min(size, _END_BYTES)), digest_size=8)
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read(min(size, _END_BYTES)))
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def unreadable(path: Path, error: OSError) -> JobError:
    """Return the error for a listed file that cannot be read any more."""
    if isinstance(error, FileNotFoundError):
        return JobError(
            f"{path} has vanished since the job listed it: restore it, or start the job afresh "
            f"(every worker must see the file under this path)"
        )
    return JobError(f"{path} cannot be read: {error.strerror or error}")
