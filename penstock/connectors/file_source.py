"""A source that reads files of the local file system, which may be compressed.

A file must not change while the job reads it. The enumerator records its size, its modification
time, and a checksum of its first and last bytes. The reader compares these values when it opens the
file. `files_source.py` has the parts that all sources of files share.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Generic

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.compressed_files import require_decompressor
from penstock.connectors.file_formats import FileFormat, TextLines
from penstock.connectors.file_watch import FoundFile
from penstock.connectors.files_source import (
    FilesSource,
    RecordReader,
    byte_ranges,
    require_format,
    unreadable,
)
from penstock.connectors.folders import list_files, local_path, require_folder, watched_files
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.metrics import LINES_SKIPPED
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import ReaderContext, SourceReader, Split
from penstock.dataflow.type_variables import T

#: The number of bytes at each end of a file that the checksum for `verify_unchanged` includes.
_END_BYTES = 4096


class FileSource(FilesSource[T], Generic[T]):
    r"""Reads the records of files.

    A path names a file, a folder, or a glob such as `logs/**/*.jsonl.gz`. Folders are searched to
    any depth. In folders and globs, names that begin with `_` or `.` are skipped. Files whose names
    end in `.gz` or `.zst` are decompressed; `.zst` needs Python 3.14 or `penstock[zstd]`. The files
    of each path are read in the order of their names. With parallelism 1, the records have the same
    order.

    In plain files of lines, the position is a byte offset. In compressed and CSV files, it is a
    number of lines or rows. There, a resumed job reads the file from its beginning and skips that
    number.

    By default, the files are listed once, when the job starts, and the source ends. With
    `discovery_seconds` it watches its folders and never ends (Flink: `monitorContinuously`). Each
    file is read once, when its size and modification time have not changed for `quiet_seconds`. A
    file is known by its path. A warning names a file that changes later.

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
        discovery_seconds: the time between two searches for new files, in seconds. With None, there
            is one search.
        quiet_seconds: the time for which a new file must not have changed, in seconds. Set it to 0
            if files appear under their names only when they are complete, because they are moved
            into the folder.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if there is no path, or an argument has the wrong type or value.

    Examples:
        >>> _ = Path("words.txt").write_text("to be\nor not\n")
        >>> list(env.from_source(FileSource("words.txt")).execute_and_collect())
        ['to be', 'or not']
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: FileFormat[T] | None = None,
        *,
        split_bytes: int = 16 << 20,
        verify_unchanged: bool = True,
        discovery_seconds: float | None = None,
        quiet_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise GraphError("a file source needs at least one path")
        chosen: Any = TextLines() if format is None else format
        require_format("a file source", chosen)
        if split_bytes < 1:
            raise GraphError(f"split_bytes is a positive number of bytes, not {split_bytes!r}")
        super().__init__(discovery_seconds, quiet_seconds, clock)
        self.paths = [local_path(path) for path in given]
        self.format = chosen
        self.split_bytes = split_bytes
        self.verify_unchanged = verify_unchanged

    @property
    def location(self) -> object:
        """The first of the paths."""
        return self.paths[0]

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tag `BAD_MESSAGES` if the format emits bad lines to a side output."""
        return side_output_tags(self.format.on_error)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the records of these splits."""
        skipped = context.metrics.counter(LINES_SKIPPED)
        return RecordReader(self.format, self._open, skipped, blocking=False)

    def list_files(self) -> Iterator[FoundFile]:
        """Return the files that each path names, sorted by path."""
        return found_files(self.paths)

    def watch_files(self) -> Iterator[FoundFile]:
        """Return the files that are there now."""
        for path in chain.from_iterable(map(watched_files, self.paths)):
            try:
                yield found_file(path)
            except FileNotFoundError:
                continue  # it was removed meanwhile

    def splits_of(self, found: FoundFile) -> list[Split]:
        """Return the splits of a file, which begin at different bytes of it."""
        path = found.path
        payload = {
            "path": str(path),
            "size": found.size,
            "mtime_ns": found.version,
            "ends": ends_of(path, found.size) if self.verify_unchanged else "",
        }
        return byte_ranges(path, self.format, self.split_bytes, payload)

    def validate(self) -> None:
        """Check that each path names at least one file, or a folder that can be watched.

        Raises:
            GraphError: if a path names nothing, or if a package is missing that decompresses files.
        """
        for path in self.paths:
            try:
                if not self.ends:
                    require_folder(path)
                    require_decompressor(path)
                    continue
                for file in list_files(path):
                    require_decompressor(file)
            except JobError as error:
                raise GraphError(error.message) from None

    def _open(self, payload: dict[str, Any]) -> Path:
        """Return the file of a split, if it has not changed since the enumerator listed it.

        Raises:
            JobError: if the file is shorter, or `verify_unchanged` is set and it was changed.
        """
        path, size = Path(payload["path"]), payload["size"]
        status = path.stat()
        if status.st_size < size:
            raise JobError(
                f"{path} shrank from {size} to {status.st_size} bytes since the job listed "
                f"it: restore it, or start the job afresh"
            )
        if self.verify_unchanged and _is_rewritten(path, status, payload):
            raise JobError(
                f"{path} was written to since the job listed it, so its records may have "
                f"changed: start the job afresh, or set verify_unchanged=False"
            )
        return path


def found_files(paths: Iterable[Path]) -> Iterator[FoundFile]:
    """Yield the files that some paths name, each once, for each path in the order of their names.

    Raises:
        JobError: if a path names no file, or a folder cannot be read.
    """
    # The paths are keys of a dict, so that a file is read once even if two paths contain it.
    for path in {path: None for given in paths for path in list_files(given)}:
        try:
            yield found_file(path)
        except OSError as error:
            raise unreadable(path, error) from error


def found_file(path: Path) -> FoundFile:
    """Return the size and the modification time of a file, in nanoseconds, with its path.

    Raises:
        OSError: if the file is not there.
    """
    status = path.stat()
    return FoundFile(path, status.st_size, status.st_mtime_ns)


def _is_rewritten(path: Path, status: os.stat_result, payload: dict[str, Any]) -> bool:
    if status.st_mtime_ns == payload["mtime_ns"]:
        return False
    size = payload["size"]
    # Lines that are appended do not change the bytes up to the listed size. Snapshots of
    # Penstock 0.1 have no checksum of the first and last bytes.
    ends = payload.get("ends")
    return status.st_size == size or (ends is not None and ends != ends_of(path, size))


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
