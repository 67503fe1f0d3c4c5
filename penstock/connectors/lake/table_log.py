"""Define the interface between a sink and a table format that has a log.

A transaction in the log publishes one snapshot of a sink, and records the snapshot's number. Each
attempt reads the newest state of the table, with the number of the sink's newest snapshot. The
commit succeeds only if the table still has this state. If two committers publish the same
snapshot, one of them fails. It then reads the table again and finds the snapshot in the log.

This module does not depend on Delta or Iceberg.
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

from penstock.connectors.lake.table import Table, difference
from penstock.connectors.lake.table_store import TableStore
from penstock.connectors.staged_sink import make_staging
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import CommitterContext, WriterContext

#: The type of a table's state, as one format represents it.
State = TypeVar("State")

#: The maximum number of attempts to commit a transaction. There is no pause between attempts. An
#: attempt fails because another writer has committed, and a pause would allow more such commits.
_ATTEMPTS = 60


class ConflictError(Exception):
    """Raised if another writer has committed to the table since its state was read."""


@dataclass(frozen=True)
class SinkSnapshot:
    """A snapshot of a sink, to be published in a table.

    Arguments:
        lineage: the id of the lineage of the job's snapshots.
        uid: the uid of the sink.
        number: the number of the snapshot.
    """

    lineage: str
    uid: str
    number: int

    @property
    def tag(self) -> str:
        """Return a short name that identifies the sink and the lineage of the snapshot."""
        return sink_tag(self.lineage, self.uid)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file in the table's folder that a transaction adds to the log.

    Arguments:
        path: the path of the file, or of its staged copy if the table is in an object store.
        folder: the folder of the file's partition, such as `a=1/b=x`; "" without partitions.
        name: the name of the object in the folder of the table; "" if the file is local.
    """

    path: Path
    folder: str
    name: str = ""


@dataclass(frozen=True)
class LakeTable(Table, ABC):
    """The description of a table whose format has a log, as plain data.

    Arguments:
        store: the store of the table; None for a table in a local folder.
    """

    store: TableStore | None = None

    def staging(self, context: WriterContext) -> Path:
        """Return the folder of staged files: that of the job, for a table in an object store."""
        if self.store is None:
            return super().staging(context)
        if context.staging is None:
            raise JobError("a sink of a table in a store needs the staging folder of a job")
        return context.staging

    def make_staging(self, context: WriterContext) -> None:
        """Create the folder of staged files, if it does not exist."""
        if self.store is None:
            super().make_staging(context)
        else:
            make_staging(self.staging(context))

    @abstractmethod
    def require_mode(self, mode: str) -> None:
        """Check that the table can be written in a mode of the sink.

        Raises:
            GraphError: if the table cannot be written in this mode.
        """


class TableLog(ABC, Generic[State]):
    """Publishes snapshots of a sink by transactions in the log of one table.

    The caller passes a function that creates the output. `TableLog` calls the function only if the
    log does not contain the snapshot. After a conflict it calls the function again.

    Arguments:
        table: the description of the table.
    """

    def __init__(self, table: LakeTable) -> None:
        self._table = table

    def published(self, lineage: str, uid: str) -> int:
        """Return the number of a sink's newest snapshot in the log, or 0 if there is none.

        Raises:
            JobError: if the table cannot be read.
        """
        with self._opened() as state:
            return self._recorded(state, SinkSnapshot(lineage, uid, 0))

    def append(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        files: Callable[[int], list[NewFile]],
    ) -> None:
        """Add files to the table, unless the log contains the snapshot already.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: the table's identities that are recorded with the staged files.
            files: a function that returns the files to add. Its argument is the number of the
                newest snapshot in the log. It returns the files of all later snapshots.

        Raises:
            JobError: if another table has taken this table's place, or the table can no longer be
                written exactly once, or its catalog cannot be read.
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
        """Replace all files of the table, unless the log contains the snapshot already.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: the table's identities that are recorded with the staged files.
            files: a function that returns the new files.

        Raises:
            JobError: in the same cases as `append`.
        """
        self._once(snapshot, staged_for, lambda state, _: self._overwrite(state, snapshot, files()))

    def upsert(
        self,
        snapshot: SinkSnapshot,
        staged_for: Sequence[dict[str, Any]],
        changes: Callable[[int], pa.Table],
        keys: tuple[str, ...],
    ) -> None:
        """Replace and delete rows by key, unless the log contains the snapshot already.

        Arguments:
            snapshot: the snapshot to publish.
            staged_for: the table's identities that are recorded with the staged files.
            changes: a function that returns the last change of each key. Its argument is the
                number of the newest snapshot in the log. Only changes of later snapshots are
                returned. The boolean column `DELETED` is true if the row is to be deleted.
            keys: the names of the columns that identify a row.

        Raises:
            JobError: in the same cases as `append`.
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
            JobError: if the table does not exist, cannot be read, or can no longer be written
                exactly once.
        """

    @abstractmethod
    def _identity(self, state: State) -> dict[str, Any]:
        """Return the identity of the table in the given state; see `Table.identity`."""

    @abstractmethod
    def _recorded(self, state: State, snapshot: SinkSnapshot) -> int:
        """Return the number of the sink's newest snapshot in the log, or 0 if there is none."""

    @abstractmethod
    def _make_durable(self, state: State, snapshot: SinkSnapshot) -> None:
        """Sync the commit of a published snapshot. A crash may have prevented this before."""

    @abstractmethod
    def _append(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """Add files to the table in one durable commit, with the number of the snapshot.

        Raises:
            ConflictError: if the state of the table has changed, or the result of the commit is
                unknown. The next attempt finds out whether the log contains the snapshot.
        """

    @abstractmethod
    def _overwrite(self, state: State, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        """Replace all files of the table in one durable commit; raise the errors of `_append`."""

    @abstractmethod
    def _upsert(
        self, state: State, snapshot: SinkSnapshot, changes: pa.Table, keys: tuple[str, ...]
    ) -> None:
        """Replace and delete rows by key in one durable commit; raise the errors of `_append`."""


def require_not_ahead(
    log: TableLog[Any], context: CommitterContext | None, lineage: str, uid: str
) -> None:
    """Check that the log of a table has no snapshot that the job does not have.

    Arguments:
        log: the log of the table.
        context: the run; None in tests of a committer alone.
        lineage: the id of a lineage.
        uid: the uid of the sink.

    Raises:
        JobError: if it has.
    """
    if context is None or context.lineage != lineage or not context.restored:
        return
    published = log.published(lineage, uid)
    if published > context.restored:
        raise JobError(
            f"its table has the output of snapshot {published} already, and the job goes on from "
            f"snapshot {context.restored}: the newest snapshots are lost, or another run of this "
            f"job is ahead. Resume from snapshot {published} or a later one; or start a new line "
            f"of output with --resume NUMBER --fork, which writes the output behind that snapshot "
            f"a second time. Nothing was written",
            operator=f"sink {context.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
