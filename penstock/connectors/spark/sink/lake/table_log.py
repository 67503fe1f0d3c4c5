"""Define what a sink needs of a table format that has a log of its own.

A transaction in the log publishes one snapshot of a sink and carries the snapshot's number. Each
try reads the newest state of the table, looks up the sink's newest number in it, and commits on
top of exactly that state. If two committers publish the same snapshot, one of them fails, reads
the table again and finds that the snapshot is published.

Nothing here depends on Delta or Iceberg.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from penstock.connectors.file_sink import sink_tag
from penstock.connectors.spark.sink.table import Table, difference
from penstock.dataflow.errors import JobError

__all__ = ["ConflictError", "LakeTable", "NewFile", "SinkSnapshot", "TableLog"]

#: A state of a table that was read.
State = TypeVar("State")

#: Number of attempts at a transaction while others commit at the same time. There is no pause
#: between them: an attempt fails because another commit succeeded, and a pause would admit more.
_ATTEMPTS = 60


class ConflictError(Exception):
    """Another writer has committed to the table since it was read."""


@dataclass(frozen=True)
class SinkSnapshot:
    """A snapshot of a sink that is to be published.

    Arguments:
        lineage, uid: the line of snapshots and the sink.
        number: of the snapshot.
    """

    lineage: str
    uid: str
    number: int

    @property
    def tag(self) -> str:
        """Return a short name of the sink in its line of snapshots."""
        return sink_tag(self.lineage, self.uid)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file in the table's folder that the log is to name.

    Arguments:
        path: of the file.
        folder: of its partition, `a=1/b=x` as `partition_folder` writes it; "" if it has none.
    """

    path: Path
    folder: str


@dataclass(frozen=True)
class LakeTable(Table, ABC):
    """A table of a format with a log; plain data, like any `Table`."""

    @abstractmethod
    def require_mode(self, mode: str) -> None:
        """Check that the table can be written in a mode of the sink.

        Raises:
            GraphError: if not, with the reason.
        """


class TableLog(ABC, Generic[State]):
    """The log of a table.

    Functions create the output to be published. They are called once the log is known not to have
    the snapshot, and again after a conflict. Their argument is the newest snapshot in the log.

    Arguments:
        table: the table.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table

    def append(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        files: Callable[[int], list[NewFile]],
    ) -> None:
        """Add files to the table, unless its log has the snapshot.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: identities of the table that the files were staged for.
            files: returns the files of the snapshots after the given one.

        Raises:
            JobError: if the table is another one now, cannot be written any more or cannot be
                reached.
        """
        self._once(
            snapshot, staged_for, lambda state, since: self._append(state, snapshot, files(since))
        )

    def overwrite(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        files: Callable[[], list[NewFile]],
    ) -> None:
        """Replace all rows with files, unless the log has the snapshot.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: as for `append`.
            files: returns the files.

        Raises:
            JobError: as `append`.
        """
        self._once(snapshot, staged_for, lambda state, _: self._overwrite(state, snapshot, files()))

    def upsert(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        changes: Callable[[int], pa.Table],
        keys: tuple[str, ...],
    ) -> None:
        """Apply changes by key, unless the log has the snapshot.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: as for `append`.
            changes: returns the last change of each key in the snapshots after the given one, with
                a column `DELETED`.
            keys: columns that identify a row.

        Raises:
            JobError: as `append`.
        """
        self._once(
            snapshot,
            staged_for,
            lambda state, since: self._upsert(state, snapshot, changes(since), keys),
        )

    def _once(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        change: Callable[[State, int], None],
    ) -> None:
        distinct = {json.dumps(i, sort_keys=True): i for i in staged_for}
        for _ in range(_ATTEMPTS):
            with self._opened() as state:
                recorded = self._recorded(state, snapshot)
                if recorded >= snapshot.number:
                    self._make_durable(state, snapshot)
                    return
                for identity in distinct.values():
                    self._require(state, identity)
                try:
                    change(state, recorded)
                    return
                except ConflictError as conflict:
                    reason = conflict
        raise JobError(
            f"snapshot {snapshot.number} could not be published in {self._table}: others have "
            f"committed to it before each of {_ATTEMPTS} attempts ({reason}). It is tried again "
            f"when the job is restarted"
        )

    def _require(self, state: State, identity: dict[str, Any]) -> None:
        change = difference(self._identity(state), identity)
        if change is not None:
            raise JobError(
                f"{self._table} is not the table that this output was staged for: {change}. "
                f"Nothing was published. Put the table back as it was, or start the job afresh"
            )

    # ---- implemented by each format

    @abstractmethod
    def _opened(self) -> AbstractContextManager[State]:
        """Open the newest state of the table.

        Raises:
            JobError: if there is no such table, or it can't be written exactly once any more.
        """

    @abstractmethod
    def _identity(self, state: State) -> dict[str, Any]:
        """Return the present identity of the table; see `Table.identity`."""

    @abstractmethod
    def _recorded(self, state: State, snapshot: SinkSnapshot) -> int:
        """Return the newest snapshot of this sink in the log; 0 if there is none."""

    @abstractmethod
    def _make_durable(self, state: State, snapshot: SinkSnapshot) -> None:
        """Sync the commit of a snapshot, whose own sync a crash may have prevented."""

    @abstractmethod
    def _append(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """Commit on top of this state, durably, with the number of the snapshot.

        Raises:
            ConflictError: if the table has another state by now. Then nothing was committed, or
                the next attempt finds it in the log.
        """

    @abstractmethod
    def _overwrite(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """Commit as `_append` does, and remove all existing rows."""

    @abstractmethod
    def _upsert(
        self, state: State, snapshot: SinkSnapshot, changes: pa.Table, keys: tuple[str, ...]
    ) -> None:
        """Commit as `_append` does; replace rows by key, and remove deleted ones."""
