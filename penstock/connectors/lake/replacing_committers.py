"""Publish output in the modes "overwrite" and "upsert", which also remove rows.

Both committers first write to the ledger which files they will remove and which they will add.
Then they replace the files. If a crash happens after the ledger is durable, the next committer
completes the replacement. If it happens before, the table has not changed.

*Overwrite* collects the job's output in a folder next to the staged files. When the job has read
all of its input, this output replaces the content of the table. *Upsert* rewrites the changed
partitions at each commit. A rewritten partition has the rows whose keys have not changed, and the
last record of each changed key. It is one file, which is replaced in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.folders import list_files
from penstock.connectors.lake.data_file import EXTENSIONS, DataFile
from penstock.connectors.lake.old_rows import conform, old_rows
from penstock.connectors.lake.table import Table, partition_folder
from penstock.connectors.lake.table_committer import (
    Ledger,
    Replacement,
    TableCatalogs,
    TableCommitter,
)
from penstock.connectors.staged_files import STAGING
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable
from penstock.snapshot.storage.filesystem.durable_files import sync_path

#: The name of the boolean column in staged changes that is true if the row of a key is deleted.
DELETED = "__penstock_deleted"


def collection(tag: str) -> str:
    """Return the folder in which an overwriting sink collects its output.

    Arguments:
        tag: the tag of the sink.

    Returns:
        The path of the folder, relative to the folder of the table.
    """
    return f"{STAGING}/{tag}.next"


class OverwriteCommitter(TableCommitter):
    """Collects the output of a job, and replaces all rows of the table at the end of the job."""

    def __init__(self, table: Table, catalogs: TableCatalogs | None) -> None:
        super().__init__(table, catalogs)
        #: The number of the newest snapshot that was recorded in each ledger, keyed by its path.
        self._committed: dict[Path, int] = {}

    def publish(self, committables: list[Committable], ledger: Ledger, path: Path) -> None:
        """Add staged files to the collected output, and record their snapshot in the ledger."""
        self.require_collected(path, ledger)
        self.link(committables)
        number = max(c.snapshot for c in committables)
        replace(ledger, committed=number, table=committables[0].payload["table"]).write(path)
        self._committed[path] = number

    def finish(self, lineage: str, uid: str) -> None:
        """Replace all rows of the table with the collected output.

        A second call does nothing.

        Raises:
            JobError: in the same cases as `commit`.
        """
        tag = sink_tag(lineage, uid)
        path = self.ledger(tag)
        with self.locked():
            ledger = self.settled(path)
            if ledger.finished:
                return
            self.require_collected(path, ledger)
            names = self.collected(tag)
            add = sorted({str(Path(name).parent) for name in names} - {"."})
            with self.catalog() as catalog:
                self.require_table(catalog, [ledger.table or self.table.identity])
                old = catalog.partitions() if catalog is not None else set()
                # Files outside the table's folder would not be removed, so they are not allowed.
                self.require_partitions(catalog, old | set(add))
            step = Replacement(
                number=ledger.committed,
                old=[_relative(p, self.table.location) for p in list_files(self.table.location)],
                new=[[f"{collection(tag)}/{name}", name] for name in names],
                add=add,
                drop=sorted(old - set(add)),
                finished=True,
            )
            ledger = replace(ledger, table=ledger.table or self.table.identity, replacing=step)
            ledger.write(path)
            self.replace_files(path, ledger)

    def collected(self, tag: str) -> list[str]:
        """Return the paths of a sink's collected files, relative to the collecting folder."""
        waiting = self.table.location / collection(tag)
        return sorted(p.relative_to(waiting).as_posix() for p in _files(waiting))

    def require_collected(self, path: Path, ledger: Ledger) -> None:
        """Check that the table's folder was not emptied after this committer wrote to it.

        Raises:
            JobError: if the ledger is older than the last one that this committer wrote.
        """
        if ledger.committed < self._committed.get(path, 0):
            raise JobError(
                f"somebody emptied the folder of {self.table} while a job was collecting its new "
                f"content there: start the job afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            )


class UpsertCommitter(TableCommitter):
    """Publishes upserts: rewrites the partitions in which rows have changed.

    Arguments:
        table, catalogs: the table and its catalog, as for `TableCommitter`.
        keys: the columns that identify a row. They include all partition columns.
    """

    def __init__(self, table: Table, catalogs: TableCatalogs | None, keys: tuple[str, ...]) -> None:
        super().__init__(table, catalogs)
        self._keys = keys

    def publish(self, committables: list[Committable], ledger: Ledger, path: Path) -> None:
        """Apply staged changes to the table by rewriting the changed partitions."""
        identity = committables[0].payload["table"]
        number = max(c.snapshot for c in committables)
        changes = self.changes(committables)
        old: list[str] = []
        new: list[list[str]] = []
        add: list[str] = []
        with self.catalog() as catalog:
            self.require_table(catalog, [c.payload["table"] for c in committables])
            for count, (folder, mine) in enumerate(_by_partition(changes, self.table)):
                self.require_partitions(catalog, [folder] if folder else [])
                staged = path.with_name(f"{path.stem}.rewrite-{count}")
                files = self._data_files(folder)
                old += [_relative(p, self.table.location) for p in files]
                if self._rewrite(files, mine, staged):
                    name = "part-rows" + EXTENSIONS[self.table.format]
                    final = f"{folder}/{name}" if folder else name
                    new.append([_relative(staged, self.table.location), final])
                    add += [folder] if folder else []
        sync_path(self.staging)
        step = Replacement(number=number, old=old, new=new, add=add)
        ledger = replace(ledger, table=identity, replacing=step)
        ledger.write(path)
        self.replace_files(path, ledger)

    def changes(self, committables: list[Committable]) -> pa.Table:
        """Return the last change of each key in the staged files of some snapshots.

        Raises:
            JobError: if two subtasks changed the same key in one snapshot, or if a file is lost.
        """
        tables = []
        # Staged changes may lack columns that were added to the table later.
        schema = pa.schema([*self.table.schema, pa.field(DELETED, pa.bool_())])
        for number in sorted({c.snapshot for c in committables}):
            mine = [c for c in committables if c.snapshot == number]
            parts = [last_per_key(self._read_staged(c, schema), self._keys) for c in mine]
            merged = pa.concat_tables(parts)
            distinct = last_per_key(merged, self._keys)
            if len(distinct) != len(merged):
                raise JobError(
                    f"two subtasks changed the same key of {self.table} before snapshot {number}, "
                    f"so it is unknown which came last: key the stream by {list(self._keys)} "
                    f"before the sink. That snapshot keeps both changes, so then go back "
                    f"to an earlier one with --resume and --fork, or start the job afresh",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            tables.append(distinct)
        return last_per_key(pa.concat_tables(tables), self._keys)

    def _read_staged(self, committable: Committable, schema: pa.Schema) -> pa.Table:
        path = self.files.staged(committable)
        try:
            return conform(pq.read_table(path), schema, path)
        except FileNotFoundError:
            raise JobError(
                f"output of snapshot {committable.snapshot} is lost: {path} was removed by "
                f"somebody before it was published"
            ) from None

    def _data_files(self, folder: str) -> list[Path]:
        """Return the data files in the folder of a partition, in order.

        Arguments:
            folder: the relative folder of the partition; "" for a table without partitions.
        """
        place = self.table.location / folder
        if not place.exists():
            return []
        return sorted(p for p in place.iterdir() if p.is_file() and p.name[0] not in "_.")

    def _rewrite(self, files: list[Path], changes: pa.Table, staged: Path) -> bool:
        """Write the new rows of a partition to a staged file.

        Arguments:
            files: the current data files of the partition.
            changes: the changes to apply.
            staged: the path of the staged file.

        Returns:
            Whether the partition still has rows. If not, the staged file is removed.
        """
        partition_by = self.table.partition_by
        schema = pa.schema([f for f in self.table.schema if f.name not in partition_by])
        keys = [key for key in self._keys if key not in partition_by]
        kept = changes.filter(pc.invert(changes[DELETED])).select(schema.names)
        staged.unlink(missing_ok=True)
        output = DataFile(staged, self.table.format, schema)
        rows = 0
        try:
            for part in old_rows(files, self.table.format, schema):
                rest = without(part, changes, keys)
                rows += len(rest)
                output.write(rest)
            rows += len(kept)
            output.write(kept)
            output.seal()
        except BaseException:
            output.discard()
            raise
        if not rows:
            staged.unlink()
        return bool(rows)


def last_per_key(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key; the rows stay in their order."""
    if not len(table):
        return table
    indexed = table.select(list(keys)).append_column("__row", pa.array(range(len(table))))
    last = indexed.group_by(list(keys), use_threads=False).aggregate([("__row", "max")])
    return table.take(last["__row_max"].combine_chunks().sort())


def without(rows: pa.Table, changes: pa.Table, keys: list[str]) -> pa.Table:
    """Return the rows whose keys are not among the changed keys, in their order.

    Arguments:
        rows: the rows of one partition.
        changes: the changes to this partition.
        keys: the key columns that are not partition columns.
    """
    if not keys:
        return rows.slice(0, 0)  # All keys are partition columns, so every row has a changed key.
    indexed = rows.select(keys).append_column("__row", pa.array(range(len(rows))))
    rest = indexed.join(changes.select(keys), keys, join_type="left anti")
    return rows.take(rest["__row"].combine_chunks().sort())


def _by_partition(changes: pa.Table, table: Table) -> Iterator[tuple[str, pa.Table]]:
    names = table.partition_by
    if not names:
        yield "", changes
        return
    values = zip(*(changes[name].to_pylist() for name in names), strict=True)
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        rows.setdefault(partition_folder(names, value), []).append(row)
    for folder, mine in sorted(rows.items()):
        yield folder, changes.take(pa.array(mine))


def _files(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob("*") if p.is_file()) if folder.exists() else iter(())


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
