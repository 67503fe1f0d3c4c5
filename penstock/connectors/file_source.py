"""A source that reads files, which may be compressed.

The enumerator lists the files when the job starts. If the source watches its folders, it lists them
again and again, and `file_watch.py` finds the new files. Large plain files of lines are divided
into byte ranges, which several readers share.

A file must not change while the job reads it. The enumerator records its size, its modification
time, and a checksum of its first and last bytes. The reader compares these values when it opens the
file. `file_cursors.py` reads the files, and `file_formats.py` converts lines to records.
"""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Self

from penstock.connectors.bad_lines import BadLines
from penstock.connectors.compressed_files import is_compressed, require_decompressor
from penstock.connectors.file_cursors import CompressedLineCursor, CsvCursor, Cursor, LineCursor
from penstock.connectors.file_formats import CsvRows, FileFormat, LineFormat, TextLines
from penstock.connectors.file_watch import FileWatch
from penstock.connectors.folders import list_files, local_path, require_folder
from penstock.dataflow.arguments.durations import DurationLike, seconds_of
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.metrics import LINES_SKIPPED, Counter
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

#: The number of bytes at each end of a file that the checksum for `verify_unchanged` includes.
_END_BYTES = 4096


class FileSource(Source[T], Generic[T]):
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

    has_event_times = False

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
        if not isinstance(chosen, (LineFormat, CsvRows)):
            raise GraphError(
                f"the format of a file source is TextLines(), JsonLines(), CsvRows() or another "
                f"LineFormat, not {chosen!r}"
            )
        if split_bytes < 1:
            raise GraphError(f"split_bytes is a positive number of bytes, not {split_bytes!r}")
        if discovery_seconds is not None and not discovery_seconds > 0:
            raise GraphError(f"discovery_seconds is positive or None, not {discovery_seconds!r}")
        if not quiet_seconds >= 0:
            raise GraphError(f"quiet_seconds is 0 or more, not {quiet_seconds!r}")
        self.paths = [local_path(path) for path in given]
        self.format = chosen
        self.split_bytes = split_bytes
        self.verify_unchanged = verify_unchanged
        self.discovery_seconds = discovery_seconds
        self.quiet_seconds = quiet_seconds
        self.clock = clock

    def monitor_continuously(self, discovery_interval: DurationLike) -> Self:
        """Return this source with `discovery_seconds` set. (PyFlink: `monitor_continuously`.)

        Arguments:
            discovery_interval: the time between two searches for new files, in milliseconds, as a
                `Duration` or as a `timedelta`; at least 1 ms.
        """
        source = copy.copy(self)
        source.discovery_seconds = seconds_of("discovery_interval", discovery_interval, least_ms=1)
        return source

    @property
    def ends(self) -> bool:
        """Whether the source reads the files that are there at its start, and then ends."""
        return self.discovery_seconds is None

    @property
    def location(self) -> object:
        """The first of the paths."""
        return self.paths[0]

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split for each file or byte range."""
        del parallelism
        return _FileEnumerator(self) if self.ends else _WatchingEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the records of these splits."""
        skipped = context.metrics.counter(LINES_SKIPPED)
        return _FileReader(self.format, self.verify_unchanged, skipped)

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


class _FileEnumerator(ListEnumerator):
    """Lists the files when a run starts without a snapshot, and assigns their splits."""

    def __init__(self, source: FileSource) -> None:
        super().__init__()
        self._source = source

    def start(self) -> None:
        # The paths are keys of a dict, so that a file is read once even if two paths contain it.
        files = {path: None for given in self._source.paths for path in list_files(given)}
        self.splits = []
        for path in files:
            try:
                status = path.stat()
            except OSError as error:
                raise unreadable(path, error) from error
            self.splits += _splits_of(path, status, self._source)

    def restore(self, state: Any) -> None:
        # The run that took the snapshot may have watched its folders.
        super().restore(state["left"] if isinstance(state, dict) else state)


class _WatchingEnumerator(SplitEnumerator):
    """Searches for new files again and again, and assigns their splits."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._watch = FileWatch(source.paths, source.quiet_seconds, source.clock)
        self._left: deque[Split] = deque()
        self._searched_at = float("-inf")

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        seconds, now = self._source.discovery_seconds, self._source.clock()
        if not self._left and seconds is not None and now - self._searched_at >= seconds:
            self._searched_at = now
            for path, status in self._watch.find():
                self._add(path, status)
        return self._left.popleft() if self._left else None

    def _add(self, path: Path, status: os.stat_result) -> None:
        try:
            splits = _splits_of(path, status, self._source)
        except JobError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._watch.forget(path)  # it was removed before anything of it was read
                return
            raise
        # A file that is removed and written again under its name is another file.
        self._left += [Split(f"{one.id}@{status.st_mtime_ns}", one.payload) for one in splits]

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot(self) -> Any:
        left = [[split.id, split.payload] for split in self._left]
        return {"left": left, **self._watch.snapshot()}

    def restore(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise GraphError(
                "the run that took this snapshot did not watch its folders, so it does not say "
                "which of the files were read: resume without discovery_seconds, or give the "
                "source another uid, so that it begins with the files that are there"
            )
        self._left = deque(Split(id, payload) for id, payload in state["left"])
        self._watch.restore(state)


def _splits_of(path: Path, status: os.stat_result, source: FileSource) -> list[Split]:
    """Return the splits of a file, which begin at different bytes of it."""
    size = status.st_size
    step = size
    ends = ends_of(path, size) if source.verify_unchanged else ""
    if isinstance(source.format, LineFormat) and not is_compressed(path):
        step = source.split_bytes
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

    def __init__(self, format: FileFormat, verify_unchanged: bool, skipped: Counter) -> None:
        self._format = format
        self._bad = BadLines(type(format).__name__, format.on_error == "skip", skipped)
        self._verify_unchanged = verify_unchanged
        self._path = Path()
        self._cursor: Cursor | None = None

    def open(self, split: Split, position: Any) -> None:
        self.close()
        payload, bad = split.payload, self._bad
        self._path = path = Path(payload["path"])
        try:
            self._check(payload)
            if isinstance(self._format, CsvRows):
                self._cursor = CsvCursor(path, self._format, position, bad)
            elif not isinstance(self._format, LineFormat):
                raise TypeError(self._format)
            elif is_compressed(path):
                self._cursor = CompressedLineCursor(path, self._format, position, bad)
            else:
                start, end = payload["start"], payload["end"]
                self._cursor = LineCursor(path, self._format, start, end, position, bad)
        except OSError as error:
            raise unreadable(path, error) from error

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        try:
            read = self._cursor.read(max_records)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if read.finished:
            self._bad.end_split(str(self._path))
        return read

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
    """Return the error for a listed file that can no longer be read."""
    if isinstance(error, FileNotFoundError):
        return JobError(
            f"{path} has vanished since the job listed it: restore it, or start the job afresh "
            f"(every worker must see the file under this path)"
        )
    return JobError(f"{path} cannot be read: {error.strerror or error}")
