"""Publish staged files through the log of a Delta or Iceberg table.

The rows of a file belong to the table only once the log names the file. So all files of a snapshot
become visible in one step. The steps are similar to the steps for plain files
(`table_committer.py`):

1. Link each staged file under its final name, and sync the folders.
2. Commit one transaction to the table's log, with the files and the snapshot's number. Skip this
   step if the log contains the number already.
3. Write the ledger and sync it. Then remove the staged names.

After a crash, the committer repeats all steps. The log decides whether a snapshot is published.
The ledger only makes this check faster.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.connectors.lake.replacing_committers import (
    OverwriteCommitter,
    UpsertCommitter,
    collection,
)
from penstock.connectors.lake.table import Table
from penstock.connectors.lake.table_committer import Ledger, Replacement, TableCommitter
from penstock.connectors.lake.table_log import (
    LakeTable,
    NewFile,
    SinkSnapshot,
    TableLog,
    require_not_ahead,
)
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.sink import Committable, CommitterContext


class _ThroughLog(TableCommitter):
    """The base class of committers for tables that have logs."""

    _log: TableLog[Any]
    _context: CommitterContext | None = None
    #: Whether this process has not begun to publish.
    _checks = True

    def open(self, context: CommitterContext) -> None:
        """Set the run whose output the committer publishes."""
        self._context = context

    def clean(self, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()) -> int:
        """Remove staged files that no snapshot has, unless another run is ahead."""
        if self._checks:
            # The process may have published more since: this is for its start.
            require_not_ahead(self._log, self._context, lineage, uid)
            self._checks = False
        return super().clean(lineage, uid, before_attempt, keep)

    def settle(self) -> None:
        """Do nothing: readers use the log, which never shows an incomplete replacement."""


class LakeCommitter(_ThroughLog):
    """Publishes snapshots by appending their rows to a table.

    Arguments:
        table: the table that receives the rows.
        log: the log of the table.
    """

    def __init__(self, table: LakeTable, log: TableLog[Any]) -> None:
        super().__init__(table, None)
        self._log = log

    def publish(self, committables: list[Committable], ledger: Ledger, path: Path) -> None:
        """Append the staged files of snapshots that are not in the table's log yet."""
        snapshot = snapshot_of(committables)

        def files(since: int) -> list[NewFile]:
            fresh = [c for c in committables if c.snapshot > since]
            self.link(fresh)
            return [_touched(self.table, self.files.target(c)) for c in fresh]

        self._log.append(snapshot, [c.payload["table"] for c in committables], files)
        replace(ledger, committed=snapshot.number).write(path)


class LakeOverwriteCommitter(_ThroughLog, OverwriteCommitter):
    """Collects output, and replaces all rows of a table with it at the end of the job.

    Arguments:
        table: the table whose rows are replaced.
        log: the log of the table.
    """

    def __init__(self, table: LakeTable, log: TableLog[Any]) -> None:
        super().__init__(table, None)
        self._log = log

    def finish(self, lineage: str, uid: str) -> None:
        """Replace all rows of the table with the collected output, unless this was done before.

        Raises:
            JobError: if a collected file is lost, the table was replaced by another one, or the
                table cannot be written.
        """
        tag = sink_tag(lineage, uid)
        path = self.ledger(tag)
        with self.locked():
            ledger = Ledger.read(path)
            if ledger.finished:
                return
            if ledger.replacing is None:
                self.require_collected(path, ledger)
                new = [
                    [f"{collection(tag)}/{name}", f"{self.table.data}{name}"]
                    for name in self.collected(tag)
                ]
                step = Replacement(number=ledger.committed, old=[], new=new, finished=True)
                ledger = replace(ledger, table=ledger.table or self.table.identity, replacing=step)
                ledger.write(path)
            self._swap(SinkSnapshot(lineage, uid, max(1, ledger.committed)), path, ledger)

    def settled(self, path: Path) -> Ledger:
        """Return the ledger. A replacement that was begun is completed by `finish` only."""
        return Ledger.read(path)

    def _swap(self, snapshot: SinkSnapshot, path: Path, ledger: Ledger) -> None:
        step, identity = ledger.replacing, ledger.table
        assert step is not None and identity is not None

        def files() -> list[NewFile]:
            self.exchange(step)
            return [_touched(self.table, self.table.location / final) for _, final in step.new]

        self._log.overwrite(snapshot, [identity], files)
        Ledger(committed=step.number, finished=True).write(path)


class LakeUpsertCommitter(_ThroughLog, UpsertCommitter):
    """Publishes upserts: replaces and deletes rows of a table by key.

    Arguments:
        table: the table that is changed.
        log: the log of the table.
        keys: the names of the columns that identify a row.
    """

    def __init__(self, table: LakeTable, log: TableLog[Any], keys: tuple[str, ...]) -> None:
        super().__init__(table, None, keys)
        self._log = log
        self._key_columns = keys

    def publish(self, committables: list[Committable], ledger: Ledger, path: Path) -> None:
        """Apply the staged changes of all snapshots that are not in the table's log yet."""
        snapshot = snapshot_of(committables)
        self._log.upsert(
            snapshot,
            [c.payload["table"] for c in committables],
            lambda since: self.changes([c for c in committables if c.snapshot > since]),
            self._key_columns,
        )
        replace(ledger, committed=snapshot.number).write(path)


def snapshot_of(committables: list[Committable]) -> SinkSnapshot:
    """Return the newest snapshot of some committables of one sink."""
    first = committables[0]
    return SinkSnapshot(first.lineage, first.uid, max(c.snapshot for c in committables))


def _touched(table: Table, path: Path) -> NewFile:
    """Set a file's modification time to the current time, and describe the file for the log.

    Tools that clean a table's folder remove old files that the log does not name. Without a new
    time they could remove a file that was staged long before the job was resumed.
    """
    os.utime(path)
    folder = path.parent.relative_to(table.location / table.data).as_posix()
    return NewFile(path, "" if folder == "." else folder)
