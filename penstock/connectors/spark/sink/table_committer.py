"""Publish staged files as rows of a table, exactly once.

The staging folder of the table has a small *ledger* for each sink in a line of snapshots: the
number of the newest snapshot whose output is published. The engine commits all output of a
snapshot together and the snapshots in their order. So output that is not newer than the ledger is
published, even if somebody has compacted or deleted the published files since. To append:

1. Check that the table is the one that the output was staged for, and that its partitions lie
   where they should.
2. Link each staged file under its final name, and sync the folders. A file whose name exists with
   the recorded checksum was published before a crash.
3. `ALTER TABLE … ADD IF NOT EXISTS PARTITION`, `REFRESH TABLE`.
4. Write the ledger, durably; then remove the staged names.

After a crash all steps are repeated. Modes that also remove files (`replacing_committers.py`)
first write the replacement that they begin into the ledger. The next committer to the table, of
any job, completes it before anything else, because its lists of old and new files are true only
of the table as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.connectors.file_sink import STAGING, FileCommitter, sink_tag
from penstock.connectors.spark.sink.access import Access
from penstock.connectors.spark.sink.catalog import Catalog
from penstock.connectors.spark.sink.table import Table
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file, sync_path

__all__ = ["Ledger", "Replacement", "TableCommitter"]


@dataclass(frozen=True)
class Replacement:
    """Files of a table that replace others; paths are relative to the table's folder.

    Arguments:
        number: of the newest snapshot whose output it holds.
        old: files to remove.
        new: staged name and final name of each file to put in place; a final name may be that of
            an old file, which is then replaced in one step.
        add, drop: folders of partitions to add to the catalog, and to drop from it.
        finished: whether it is the last one of its job.
    """

    number: int
    old: list[str]
    new: list[list[str]]
    add: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True)
class Ledger:
    """The progress of a sink's output to a table.

    Arguments:
        committed: number of the newest snapshot whose output is published.
        finished: whether the job has ended and its last replacement is complete.
        table: identity of the table that unpublished output is for.
        replacing: a replacement that was begun.
    """

    committed: int = 0
    finished: bool = False
    table: dict[str, Any] | None = None
    replacing: Replacement | None = None

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Return the ledger in a file; an empty one if there is no file."""
        try:
            wire = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        if wire["replacing"] is not None:
            wire["replacing"] = Replacement(**wire["replacing"])
        return cls(**wire)

    def write(self, path: Path) -> None:
        """Write the ledger durably, in one step."""
        wire = {**vars(self), "replacing": self.replacing and vars(self.replacing)}
        replace_file(path, json.dumps(wire).encode(), path.with_suffix(".new"))


class TableCommitter(Committer):
    """Appends rows; the base of the committers for the other modes.

    Arguments:
        table: where the rows go.
        access: to the catalog; None for a table that is only a folder, which no Spark knows.
    """

    def __init__(self, table: Table, access: Access | None) -> None:
        self.table = table
        self.staging = table.location / STAGING
        self.files = FileCommitter(table.location)
        self._access = access

    def commit(self, committables: list[Committable]) -> None:
        """Publish the output that is newer than the ledger.

        Raises:
            JobError: if the table was replaced by another, if staged output was lost or damaged,
                or if the catalog cannot be reached or refuses a change.
        """
        sinks = {(c.lineage, c.uid): sink_tag(c.lineage, c.uid) for c in committables}
        for sink, tag in sinks.items():
            mine = [c for c in committables if (c.lineage, c.uid) == sink]
            with self.locked():
                path = self.ledger(tag)
                ledger = self.settled(path)
                fresh = [c for c in mine if c.snapshot > ledger.committed]
                if fresh:
                    self.publish(fresh, ledger, path)
            self.abandon(mine)

    def publish(self, committables: list[Committable], ledger: Ledger, path: Path) -> None:
        """Append files that are not known to be published."""
        folders = {self.partition(c) for c in committables}
        with self.catalog() as catalog:
            self.require_table(catalog, [c.payload["table"] for c in committables])
            self.require_partitions(catalog, folders)
            self.link(committables)
            self.update_catalog(catalog, folders)
        replace(ledger, committed=max(c.snapshot for c in committables)).write(path)

    def abandon(self, committables: list[Committable]) -> None:
        """Remove the staged files that still exist."""
        self.files.abandon(committables)

    def clean(self, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()) -> int:
        """Remove files of older attempts that no snapshot holds; see `FileCommitter`."""
        return self.files.clean(lineage, uid, before_attempt, keep)

    # ---- the steps

    def link(self, committables: list[Committable]) -> None:
        """Give staged files their final names, durably."""
        for folder in {self.files.target(c).parent for c in committables}:
            make_folders(folder)
        self.files.publish(committables)

    def partition(self, committable: Committable) -> str:
        """Return the folder of a staged file's partition; "" if there are none."""
        root = self.table.location / self.table.data
        folder = self.files.target(committable).parent
        if not folder.is_relative_to(root):
            raise JobError(f"{folder} is not in the folder of the data files of {self.table}")
        relative = folder.relative_to(root).as_posix()
        return "" if relative == "." else relative

    def require_table(self, catalog: Catalog | None, identities: list[dict[str, Any]]) -> None:
        """Check that the table is the one that output was staged for."""
        if catalog is not None:
            different = {json.dumps(i, sort_keys=True): i for i in identities}
            catalog.require(different.values())

    def require_partitions(self, catalog: Catalog | None, folders: Collection[str]) -> None:
        """Check that existing partitions lie in the table's folder."""
        # Each commit checks: somebody may have dropped or moved a partition since the last one.
        if catalog is not None:
            catalog.require_own_folders(folders)

    def update_catalog(
        self, catalog: Catalog | None, add: Collection[str], drop: Collection[str] = ()
    ) -> None:
        """Add the partitions of new files to the catalog, and refresh the table."""
        if catalog is None:
            return
        if drop:
            catalog.drop(drop)
        catalog.add(add)
        catalog.refresh()

    def replace_files(self, path: Path, ledger: Ledger) -> Ledger:
        """Perform or repeat the replacement in the ledger; return the new ledger."""
        step = ledger.replacing
        assert step is not None
        with self.catalog() as catalog:
            if ledger.table:
                self.require_table(catalog, [ledger.table])
            self.exchange(step)
            self.update_catalog(catalog, step.add, step.drop)
        done = Ledger(committed=step.number, finished=step.finished)
        done.write(path)
        return done

    def exchange(self, step: Replacement) -> None:
        """Remove old files and put new ones in place, durably; skip the steps done before."""
        location = self.table.location
        kept = {final for _, final in step.new}
        folders = set()
        # Old files go first: a reader in between may miss rows, but reads none twice.
        for name in step.old:
            if name not in kept:
                (location / name).unlink(missing_ok=True)
                folders.add((location / name).parent)
        for staged, final in step.new:
            target = location / final
            if (location / staged).exists():
                make_folders(target.parent)
                (location / staged).replace(target)
            elif not target.exists():
                raise JobError(
                    f"output is lost: {location / staged} was removed by somebody before it "
                    f"became {target}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            folders.add(target.parent)
        for folder in folders:
            if folder.exists():
                sync_path(folder)

    # ---- ledger and catalog

    def ledger(self, tag: str) -> Path:
        """Return the path of a sink's ledger."""
        return self.staging / f"{tag}.json"

    def settled(self, path: Path) -> Ledger:
        """Return a sink's ledger after the replacements that were begun are complete."""
        ledger = Ledger.read(path)
        return ledger if ledger.replacing is None else self.replace_files(path, ledger)

    def settle(self) -> None:
        """Complete the replacements that sinks of any job have begun in this table.

        Raises:
            JobError: if one cannot be completed.
        """
        for path in sorted(self.staging.glob("*.json")):
            ledger = Ledger.read(path)
            if ledger.replacing is None or self._is_of_another(ledger):
                continue
            try:
                self.replace_files(path, ledger)
            except JobError as error:
                raise JobError(
                    f"files of {self.table} were being replaced when a job died, and nothing can "
                    f"be published before that is completed; see {path}: {error}"
                ) from error

    def _is_of_another(self, ledger: Ledger) -> bool:
        """Return whether a ledger is for another table, which was here before."""
        if not ledger.table:
            return False
        with self.catalog() as catalog:
            if catalog is None:
                raise JobError(
                    f"a job died while it replaced files of {self.table}, and the catalog that has "
                    f"this table is not known here: resume that job first, or write to the table "
                    f"by its name"
                )
            return catalog.change_since(ledger.table) is not None

    @contextlib.contextmanager
    def catalog(self) -> Iterator[Catalog | None]:
        """Yield the table's catalog, if it has one."""
        if self._access is None or self.table.name is None:
            yield None
        else:
            with self._access.connect() as run:
                yield Catalog(self.table, run)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other commits to this table, of any job, from this block.

        Raises:
            JobError: if a replacement that another commit has begun cannot be completed.
        """
        make_folders(self.staging)
        descriptor = os.open(self.staging / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.settle()
            yield
        finally:
            os.close(descriptor)
