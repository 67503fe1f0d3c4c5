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

#: The state of a table that was read.
State = TypeVar("State")

#: How often a transaction is tried when others commit at the same time. At once: each try that was
#: for nothing is a commit of somebody else's, so that waiting would only let more of them pass.
_TRIES = 60


class ConflictError(Exception):
    """Somebody else has committed to the table since it was read."""


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
        """A short name of the sink in its line."""
        return sink_tag(self.lineage, self.uid)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file that is in the table's folder and is to be named by the log.

    Arguments:
        path: where it is.
        folder: of its partition, `a=1/b=x` as `partition_folder` writes it; "" if it has none.
    """

    path: Path
    folder: str


@dataclass(frozen=True)
class LakeTable(Table, ABC):
    """A table of a format with a log. Plain data, as any `Table`."""

    @abstractmethod
    def require_mode(self, mode: str) -> None:
        """See that the table can be written in a mode of the sink.

        Raises:
            GraphError: if not, with the reason.
        """


class TableLog(ABC, Generic[State]):
    """The log of a table.

    What is to be published is made by functions, which are called when it is known that the
    table does not have it, and again after a conflict. They take the number of the snapshot that
    it has.

    Arguments:
        table: whose log it is.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table

    def append(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        files: Callable[[int], list[NewFile]],
    ) -> None:
        """Add files to the table, unless its log says that they are in.

        Arguments:
            snapshot: what is published.
            staged_for: identities of the table that the files were staged for.
            files: the files of snapshots after one.

        Raises:
            JobError: if it is another table now, can't be written any more or can't be reached.
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
        """Let files take the place of all rows, unless the log says that it was done.

        Arguments:
            snapshot: what is published.
            staged_for: as for `append`.
            files: the files.

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
        """Apply changes by key, unless the log says that they are in.

        Arguments:
            snapshot: what is published.
            staged_for: as for `append`.
            changes: the last change of each key in snapshots after one, with a column `DELETED`.
            keys: columns whose values tell rows apart.

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
        for _ in range(_TRIES):
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
            f"committed to it before each of {_TRIES} tries ({reason}). It is tried again when "
            f"the job is restarted"
        )

    def _require(self, state: State, identity: dict[str, Any]) -> None:
        change = difference(self._identity(state), identity)
        if change is not None:
            raise JobError(
                f"{self._table} is not the table that this output was staged for: {change}. "
                f"Nothing was published. Put the table back as it was, or start the job afresh"
            )

    # ---- what a format does

    @abstractmethod
    def _opened(self) -> AbstractContextManager[State]:
        """The newest state of the table.

        Raises:
            JobError: if there is no such table, or it can't be written exactly once any more.
        """

    @abstractmethod
    def _identity(self, state: State) -> dict[str, Any]:
        """What tells the table from others, as it is now; see `Table.identity`."""

    @abstractmethod
    def _recorded(self, state: State, snapshot: SinkSnapshot) -> int:
        """The newest snapshot of this sink that the log has; 0 if none."""

    @abstractmethod
    def _make_durable(self, state: State, snapshot: SinkSnapshot) -> None:
        """An snapshot was found in the log; it may have come there a moment before a crash."""

    @abstractmethod
    def _append(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """Commit on top of this state, durably, with the number of the snapshot.

        Raises:
            ConflictError: if the table has another state by now; nothing was done then, or what
                was done will be found.
        """

    @abstractmethod
    def _overwrite(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """As `_append`; all rows that are there go."""

    @abstractmethod
    def _upsert(
        self, state: State, snapshot: SinkSnapshot, changes: pa.Table, keys: tuple[str, ...]
    ) -> None:
        """As `_append`; rows with the keys of changes go, and those that are not deleted come."""
