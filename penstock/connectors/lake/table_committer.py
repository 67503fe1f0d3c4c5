"""Publish staged files as rows of a table, exactly once.

The staging folder of the table has a small file for each sink, the *ledger*. It contains the number
of the newest snapshot whose output is published. The engine commits the snapshots in order, and all
output of a snapshot together. So the output of this snapshot and of older ones is published, even
if somebody has compacted or deleted the published files. In the mode "append", a commit has four
steps:

1. Check that the output was staged for this table, and that its partitions are in the table's
   folder.
2. Link each staged file under its final name, and sync the folders. If a file of this name exists
   with the recorded checksum, it was published before a crash.
3. Add the new partitions to the catalog, and refresh the table.
4. Write the ledger and sync it. Then remove the staged names.

After a crash, all steps are repeated. The modes that remove files (`replacing_committers.py`) first
write to the ledger which files they will replace. The next commit to the table, by any job, first
completes this replacement, because its lists of files are valid only until the table changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from penstock.connectors.file_sink import FileCommitter
from penstock.connectors.lake.table import Table
from penstock.connectors.staged_files import STAGING, make_staging
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file, sync_path


@dataclass(frozen=True)
class Replacement:
    """A replacement of files of a table; all paths are relative to the table's folder.

    Arguments:
        number: the number of the newest snapshot whose output the new files contain.
        old: the paths of the files to remove.
        new: the staged path and the final path of each new file. If the final path is that of an
            old file, this file is replaced in one step.
        add, drop: the folders of the partitions to add to the catalog, and to drop from it.
        finished: whether this is the last replacement of its job.
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
        committed: the number of the newest snapshot whose output is published.
        finished: whether the job has ended and its last replacement is complete.
        table: the identity of the table for which unpublished output was staged.
        replacing: the replacement that has begun and is not complete; None if there is none.
    """

    committed: int = 0
    finished: bool = False
    table: dict[str, Any] | None = None
    replacing: Replacement | None = None

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read a ledger from a file; return an empty ledger if the file does not exist."""
        try:
            wire = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        if wire["replacing"] is not None:
            wire["replacing"] = Replacement(**wire["replacing"])
        return cls(**wire)

    def write(self, path: Path) -> None:
        """Replace the file of the ledger in one step, and sync it to disk."""
        wire = {**vars(self), "replacing": self.replacing and vars(self.replacing)}
        replace_file(path, json.dumps(wire).encode(), path.with_suffix(".new"))


class TableCatalog(Protocol):
    """The entry of one table in a catalog that lists its partitions."""

    def require(self, identities: Iterable[dict[str, Any]]) -> None:
        """Check that the table is the one that output was staged for."""

    def change_since(self, identity: dict[str, Any]) -> str | None:
        """Return how the table differs from an identity; None if it is equal."""

    def partitions(self) -> set[str]:
        """Return the folders of all partitions, relative to the folder of the table."""

    def require_own_folders(self, folders: Collection[str]) -> None:
        """Check that existing partitions are in the table's own folder."""

    def add(self, folders: Collection[str]) -> None:
        """Add partitions that the catalog does not have."""

    def drop(self, folders: Iterable[str]) -> None:
        """Drop partitions."""

    def refresh(self) -> None:
        """Make new files visible."""


class TableCatalogs(Protocol):
    """Opens the entries of tables in a catalog."""

    def open(self, table: Table) -> AbstractContextManager[TableCatalog]:
        """Open the entry of a table."""


class TableCommitter(Committer):
    """Publishes rows in the mode "append"; base class of the committers for other modes.

    Arguments:
        table: the table to write.
        catalogs: opens the table's entry in a catalog; None for a table that is only a folder.
    """

    def __init__(self, table: Table, catalogs: TableCatalogs | None) -> None:
        self.table = table
        self.staging = table.location / STAGING
        self.files = FileCommitter(table.location)
        self._catalogs = catalogs

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
        """Append staged files to the table, and record their snapshot in the ledger."""
        folders = {self.partition(c) for c in committables}
        with self.catalog() as catalog:
            self.require_table(catalog, [c.payload["table"] for c in committables])
            self.require_partitions(catalog, folders)
            self.link(committables)
            self.update_catalog(catalog, folders)
        replace(ledger, committed=max(c.snapshot for c in committables)).write(path)

    def abandon(self, committables: list[Committable]) -> None:
        """Remove the staged files of committables, if they still exist."""
        self.files.abandon(committables)

    def clean(self, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()) -> int:
        """Remove the staged files of older attempts that no snapshot contains.

        The arguments and the result are those of `FileCommitter.clean`.
        """
        return self.files.clean(lineage, uid, before_attempt, keep)

    # ---- The steps of a commit

    def link(self, committables: list[Committable]) -> None:
        """Link staged files under their final names, and sync the folders to disk."""
        for folder in {self.files.target(c).parent for c in committables}:
            make_folders(folder)
        self.files.publish(committables)

    def partition(self, committable: Committable) -> str:
        """Return the partition folder of a staged file; "" if the table has no partitions."""
        root = self.table.location / self.table.data
        folder = self.files.target(committable).parent
        if not folder.is_relative_to(root):
            raise JobError(f"{folder} is not in the folder of the data files of {self.table}")
        relative = folder.relative_to(root).as_posix()
        return "" if relative == "." else relative

    def require_table(self, catalog: TableCatalog | None, identities: list[dict[str, Any]]) -> None:
        """Check that the table in the catalog is the one that output was staged for.

        Raises:
            JobError: if the table in the catalog differs, or if it is not found.
        """
        if catalog is not None:
            different = {json.dumps(i, sort_keys=True): i for i in identities}
            catalog.require(different.values())

    def require_partitions(self, catalog: TableCatalog | None, folders: Collection[str]) -> None:
        """Check that existing partitions are stored in the table's folder.

        Raises:
            JobError: if the catalog has another location for a partition.
        """
        # Each commit checks this, because a user may have dropped or moved a partition meanwhile.
        if catalog is not None:
            catalog.require_own_folders(folders)

    def update_catalog(
        self, catalog: TableCatalog | None, add: Collection[str], drop: Collection[str] = ()
    ) -> None:
        """Add and drop partitions in the catalog, and refresh the table."""
        if catalog is None:
            return
        if drop:
            catalog.drop(drop)
        catalog.add(add)
        catalog.refresh()

    def replace_files(self, path: Path, ledger: Ledger) -> Ledger:
        """Perform or repeat the replacement in a ledger; write and return the new ledger."""
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
        """Remove the old files, move the new files to their final paths, and sync the folders.

        Steps that were done before a crash are skipped.

        Raises:
            JobError: if a staged file is missing and was not moved before.
        """
        location = self.table.location
        kept = {final for _, final in step.new}
        folders = set()
        # Old files are removed first. A query at this time may miss rows, but reads none twice.
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

    # ---- The ledger and the catalog

    def ledger(self, tag: str) -> Path:
        """Return the path of the ledger of the sink with this tag."""
        return self.staging / f"{tag}.json"

    def settled(self, path: Path) -> Ledger:
        """Complete the replacement in a sink's ledger, if any, and return the ledger."""
        ledger = Ledger.read(path)
        return ledger if ledger.replacing is None else self.replace_files(path, ledger)

    def settle(self) -> None:
        """Complete all replacements that sinks of any job have begun in this table.

        Raises:
            JobError: if a replacement cannot be completed.
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
        """Return whether a ledger belongs to another table that had the same folder before."""
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
    def catalog(self) -> Iterator[TableCatalog | None]:
        """Connect to the table's catalog and yield it; yield None if there is no catalog."""
        if self._catalogs is None or self.table.name is None:
            yield None
        else:
            with self._catalogs.open(self.table) as catalog:
                yield catalog

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the table, so that no other job commits to it during the block.

        Raises:
            JobError: if an incomplete replacement in this table cannot be completed.
        """
        make_staging(self.table.location)
        descriptor = os.open(self.staging / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.settle()
            yield
        finally:
            os.close(descriptor)
