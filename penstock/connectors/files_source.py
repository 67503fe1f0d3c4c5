"""The base of sources that read files, wherever these are: `FilesSource`.

The enumerator lists the files when the job starts. If the source watches its folders, it lists them
again and again, and `file_watch.py` finds the new files. Large plain files of lines are divided
into byte ranges, which several readers share.

A file must not change while the job reads it. A split contains what identifies the file's content,
and the source compares it when a reader opens the file. `file_cursors.py` reads the files, and
`file_formats.py` converts lines to records.
"""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Self

from penstock.connectors.bad_messages import BadMessages
from penstock.connectors.compressed_files import ReadableFile, is_compressed
from penstock.connectors.file_cursors import CompressedLineCursor, CsvCursor, LineCursor
from penstock.connectors.file_formats import (
    BinaryFormat,
    CsvRows,
    Cursor,
    FileFormat,
    LineFormat,
)
from penstock.connectors.file_watch import FileWatch, FoundFile
from penstock.dataflow.arguments.durations import DurationLike, seconds_of
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.metrics import Counter
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import T


class FilesSource(Source[T], Generic[T]):
    """A source that reads files. A subclass finds them, and describes their splits.

    Arguments:
        discovery_seconds: the time between two searches for new files, in seconds. With None, there
            is one search.
        quiet_seconds: the time for which a new file must not have changed, in seconds.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if an argument has the wrong value.
    """

    has_event_times = False

    def __init__(
        self,
        discovery_seconds: float | None,
        quiet_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if discovery_seconds is not None and not discovery_seconds > 0:
            raise GraphError(f"discovery_seconds is positive or None, not {discovery_seconds!r}")
        if not quiet_seconds >= 0:
            raise GraphError(f"quiet_seconds is 0 or more, not {quiet_seconds!r}")
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

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split for each file or part of a file."""
        del parallelism
        return _FilesEnumerator(self) if self.ends else _WatchingEnumerator(self)

    # ---- implemented by each kind of source

    @abstractmethod
    def list_files(self) -> Iterable[FoundFile]:
        """Return the files, in the order in which they are read.

        Raises:
            JobError: if there is none, or they cannot be listed.
        """

    @abstractmethod
    def watch_files(self) -> Iterable[FoundFile]:
        """Return the files that are there now, in any order. There may be none.

        Raises:
            JobError: if they cannot be listed.
        """

    @abstractmethod
    def splits_of(self, found: FoundFile) -> list[Split]:
        """Return the splits of a file.

        Raises:
            JobError: if the file cannot be read. It is caused by a `FileNotFoundError` if the file
                was removed.
        """


class _FilesEnumerator(ListEnumerator):
    """Lists the files when a run starts without a snapshot, and assigns their splits."""

    def __init__(self, source: FilesSource) -> None:
        super().__init__()
        self._source = source

    def start(self) -> None:
        found = self._source.list_files()
        self.splits = [split for file in found for split in self._source.splits_of(file)]

    def restore(self, state: Any) -> None:
        # The run that took the snapshot may have watched its folders.
        super().restore(state["left"] if isinstance(state, dict) else state)


class _WatchingEnumerator(SplitEnumerator):
    """Searches for new files again and again, and assigns their splits."""

    def __init__(self, source: FilesSource) -> None:
        self._source = source
        self._watch = FileWatch(source.watch_files, source.quiet_seconds, source.clock)
        self._left: deque[Split] = deque()
        self._searched_at = float("-inf")

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        seconds, now = self._source.discovery_seconds, self._source.clock()
        if not self._left and seconds is not None and now - self._searched_at >= seconds:
            self._searched_at = now
            for found in self._watch.find():
                self._add(found)
        return self._left.popleft() if self._left else None

    def _add(self, found: FoundFile) -> None:
        try:
            splits = self._source.splits_of(found)
        except JobError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._watch.forget(found)  # it was removed before anything of it was read
                return
            raise
        # A file that is removed and written again under its name is another file.
        self._left += [Split(f"{one.id}@{found.version}", one.payload) for one in splits]

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


def byte_ranges(
    path: ReadableFile,
    format: FileFormat,
    split_bytes: int,
    payload: dict[str, Any],
) -> list[Split]:
    """Return the splits of a file of records, which begin at different bytes of it.

    Arguments:
        path: the file.
        format: the format of its records.
        split_bytes: the size of a range, in bytes.
        payload: the description of the file, with its `size`.
    """
    size = payload["size"]
    divided = isinstance(format, LineFormat) and not is_compressed(path)
    step = split_bytes if divided else size
    return [
        Split(f"{path}:{start}", {**payload, "start": start, "end": min(start + step, size)})
        for start in range(0, size, max(step, 1))
    ]


class RecordReader(SourceReader):
    """Reads the records of a split, with the cursor that suits the format and the file.

    Arguments:
        format: the format of the files.
        open_file: a function that returns the file of a split, given the split's payload. It raises
            an error if the file has changed.
        skipped: counts the lines that are skipped.
        blocking: whether reading a file may block for long.
    """

    def __init__(
        self,
        format: FileFormat,
        open_file: Callable[[dict[str, Any]], ReadableFile],
        skipped: Counter,
        *,
        blocking: bool,
    ) -> None:
        self.blocking = blocking
        self._format = format
        self._open_file = open_file
        self._bad = BadMessages(format.name, format.on_error, skipped, "line")
        self._path = ""
        self._cursor: Cursor | None = None

    def open(self, split: Split, position: Any) -> None:
        """Open the file of a split at a position."""
        self.close()
        payload, bad = split.payload, self._bad
        self._path = payload["path"]
        try:
            file = self._open_file(payload)
            if isinstance(self._format, BinaryFormat):
                self._cursor = self._format.open_cursor(file, position, bad)
            elif isinstance(self._format, CsvRows):
                self._cursor = CsvCursor(file, self._format, position, bad)
            elif not isinstance(self._format, LineFormat):
                raise TypeError(self._format)
            elif is_compressed(file):
                self._cursor = CompressedLineCursor(file, self._format, position, bad)
            else:
                start, end = payload["start"], payload["end"]
                self._cursor = LineCursor(file, self._format, start, end, position, bad)
        except OSError as error:
            raise unreadable(self._path, error) from error

    def read(self, max_records: int) -> Read:
        """Return the next records of the split."""
        assert self._cursor is not None, "read before open"
        try:
            read = self._cursor.read(max_records)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if read.finished:
            self._bad.end_split(self._path)
        return read

    def close(self) -> None:
        """Close the file."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


def require_format(name: str, format: Any) -> None:
    """Check that a source can read the records of a format.

    Raises:
        GraphError: if it cannot.
    """
    if not isinstance(format, (LineFormat, CsvRows, BinaryFormat)):
        raise GraphError(
            f"the format of {name} is TextLines(), JsonLines(), CsvRows(), AvroFiles(), "
            f"MessageLines(schema) or another LineFormat, not {format!r}"
        )


def unreadable(path: object, error: OSError) -> JobError:
    """Return the error for a listed file that can no longer be read."""
    if isinstance(error, FileNotFoundError):
        return JobError(
            f"{path} has vanished since the job listed it: restore it, or start the job afresh "
            f"(every worker must see the file under this path)"
        )
    return JobError(f"{path} cannot be read: {error.strerror or error}")
