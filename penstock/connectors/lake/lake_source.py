"""The base of sources of Delta and Iceberg tables.

The enumerator chooses a version when the job starts, and assigns its data files. A data file never
changes. If the source follows the table, the enumerator then assigns the files of new commits, one
commit after the other. A snapshot has the version up to which files are assigned. So a position is
a version, the index of a file in it, and a number of rows.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.connectors.columns.arrow_cursor import ArrowCursor
from penstock.connectors.lake.table_history import TableHistory, TableVersion, unreadable_table
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("penstock.connectors")


class LakeSource(Source[Any]):
    """A source of the rows of a table whose log lists its data files.

    Arguments:
        name: the name of the table, for messages.
        history: reads the versions of the table.
        number: the version to begin with; None for the newest.
        timestamp: the time whose version to begin with, or None.
        discovery_seconds: the time between two searches for new commits, in seconds; None to read
            one version.
        only_new: whether to skip the rows of the version, and read those of later commits only.
        on_rewrite: what to do with a later commit that changes or removes rows: "fail" or "skip".
        clock: a function that returns a monotonic time, in seconds.
    """

    has_event_times = False

    def __init__(
        self,
        name: str,
        history: TableHistory,
        number: int | None,
        timestamp: datetime | None,
        discovery_seconds: float | None,
        only_new: bool,
        on_rewrite: str,
        clock: Callable[[], float],
    ) -> None:
        kind = type(self).__name__
        if number is not None and timestamp is not None:
            raise GraphError(f"a {kind} begins with a version or with a timestamp, not with both")
        if timestamp is not None and not isinstance(timestamp, datetime):
            raise GraphError(f"the timestamp of a {kind} is a datetime, not {timestamp!r}")
        if on_rewrite not in ("fail", "skip"):
            raise GraphError(f'on_rewrite of a {kind} is "fail" or "skip", not {on_rewrite!r}')
        if discovery_seconds is not None and not discovery_seconds > 0:
            raise GraphError(f"discovery_seconds is positive or None, not {discovery_seconds!r}")
        if only_new and discovery_seconds is None:
            raise GraphError("only_new=True needs discovery_seconds: the time between two searches")
        self.name, self.history = name, history
        self.number = number
        # A time without a zone is local, as for `datetime.timestamp`.
        self.timestamp = None if timestamp is None else timestamp.astimezone(UTC)
        self.discovery_seconds = discovery_seconds
        self.only_new, self.on_rewrite = only_new, on_rewrite
        self.clock = clock

    @property
    def ends(self) -> bool:
        """Whether the source reads one version, and then ends."""
        return self.discovery_seconds is None

    @property
    def location(self) -> object:
        """The name of the table."""
        return self.name

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split for each data file."""
        del parallelism
        return _LakeEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of data files."""
        del context
        return _LakeReader(self.name, self.history)

    def validate(self) -> None:
        """Check that the version exists and can be read.

        Raises:
            GraphError: if it does not, or cannot.
        """
        try:
            version = self.history.find(self.number, self.timestamp)
            if not self.only_new:
                self.history.files(version)
        except JobError as error:
            raise GraphError(error.message) from None


class _LakeEnumerator(SplitEnumerator):
    """Assigns the data files of a version, and then those of new commits."""

    def __init__(self, source: LakeSource) -> None:
        self._source = source
        self._left: deque[Split] = deque()
        self._version = TableVersion(0, "")
        self._searched_at = float("-inf")

    def start(self) -> None:
        source = self._source
        self._version = source.history.find(source.number, source.timestamp)
        if not source.only_new:
            self._add(self._version.number, source.history.files(self._version))

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        seconds, now = self._source.discovery_seconds, self._source.clock()
        if not self._left and seconds is not None and now - self._searched_at >= seconds:
            self._searched_at = now
            self._find()
        return self._left.popleft() if self._left else None

    def _find(self) -> None:
        """Find the next commits, up to one that has added files."""
        source, before = self._source, self._version
        for commit in source.history.since(before):
            if commit.rewrite:
                what = f"version {commit.number} of {source.name} {commit.rewrite}"
                if source.on_rewrite == "fail":
                    raise unreadable_table(
                        f"{what}, and a source that follows a table reads added rows only. Begin "
                        f"again with that version, or set on_rewrite='skip' to leave out such "
                        f"commits"
                    )
                logger.warning("%s: the commit is skipped", what)
            else:
                self._add(commit.number, commit.files)
            self._version = TableVersion(commit.number, before.table, before.schema)
            if self._left:
                self._searched_at = float("-inf")  # there may be more commits
                return

    def _add(self, number: int, files: list[dict[str, Any]]) -> None:
        self._left += [Split(f"{number}:{index}", file) for index, file in enumerate(files)]

    @property
    def exhausted(self) -> bool:
        return self._source.ends

    def snapshot(self) -> Any:
        version = self._version
        return {
            "left": [[split.id, split.payload] for split in self._left],
            "version": [version.number, version.table, version.schema],
        }

    def restore(self, state: Any) -> None:
        self._left = deque(Split(id, payload) for id, payload in state["left"])
        self._version = TableVersion(*state["version"])


class _LakeReader(SourceReader):
    """Reads the rows of one data file at a time."""

    blocking = True

    def __init__(self, name: str, history: TableHistory) -> None:
        self._name, self._history = name, history
        self._cursor: ArrowCursor | None = None

    def open(self, split: Split, position: Any) -> None:
        payload = split.payload
        rows = sys.maxsize if payload["rows"] is None else payload["rows"]
        self._cursor = ArrowCursor(self._history.batches(payload), position or 0, rows)

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        try:
            return self._cursor.read(max_records)
        except (OSError, ValueError) as error:  # the errors of pyarrow are among them
            raise JobError(f"{self._name} cannot be read: {error}") from error

    def close(self) -> None:
        self._cursor = None
