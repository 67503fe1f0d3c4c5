"""Perform transactions on an Iceberg table, through pyiceberg.

A transaction adds an Iceberg snapshot to the table. It also sets the table property
`penstock.<sink>.snapshot` to the number of the job's snapshot. The property remains when Iceberg's
snapshots expire. The summary of each Iceberg snapshot also contains the number. It informs users,
and it is a fallback if somebody removes the property.

The retries of pyiceberg are disabled. After a conflict, another committer may have published the
same snapshot, so the log checks this before the next attempt. (Iceberg's Table Spec, "Optimistic
Concurrency"; Catalog API, "assert-ref-snapshot-id".)
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import (
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.typedef import Record

from penstock.connectors.lake.data_file import EXTENSIONS
from penstock.connectors.lake.data_file import DataFile as StagedFile
from penstock.connectors.lake.iceberg import (
    IcebergTable,
    identity_of,
    opened,
    refusal,
)
from penstock.connectors.lake.iceberg_writer import partition_values, split
from penstock.connectors.lake.replacing_committers import DELETED, without
from penstock.connectors.lake.table import local_folder
from penstock.connectors.lake.table_log import (
    ConflictError,
    NewFile,
    SinkSnapshot,
    TableLog,
)
from penstock.dataflow.errors import GraphError, JobError, Recoverability, connector_recoverability
from penstock.snapshot.storage.filesystem.durable_files import make_folders


class IcebergLog(TableLog[PyIcebergTable]):
    """Performs transactions on one Iceberg table.

    Arguments:
        table: the description of the table.
    """

    def __init__(self, table: IcebergTable) -> None:
        super().__init__(table)
        self._iceberg = table

    @contextlib.contextmanager
    def _opened(self) -> Iterator[PyIcebergTable]:
        mine = self._iceberg
        with contextlib.ExitStack() as stack:
            try:
                table = stack.enter_context(opened(mine.catalog, mine.identifier, mine.properties))
            except GraphError as error:
                raise JobError(f"output cannot be published any more: {error}") from error
            reason = refusal(table)
            if reason is not None:
                raise JobError(f"{mine} cannot be written exactly once any more: {reason}")
            # Disable retries in this copy of the properties. The stored table does not change.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            yield table

    def _identity(self, state: PyIcebergTable) -> dict[str, Any]:
        if self._iceberg.store is not None:
            return identity_of(state, Path(state.location().rstrip("/")))
        return identity_of(state, local_folder(str(self._table), state.location()))

    def _recorded(self, state: PyIcebergTable, snapshot: SinkSnapshot) -> int:
        record = state.properties.get(_property(snapshot))
        if record is not None:
            return int(record)
        numbers = [0]
        for ancestor in ancestors_of(state.current_snapshot(), state.metadata):
            summary = ancestor.summary.additional_properties if ancestor.summary else {}
            if summary.get("penstock.tag") == snapshot.tag:
                numbers.append(int(summary["penstock.snapshot"]))
        return max(numbers)

    def _make_durable(self, state: PyIcebergTable, snapshot: SinkSnapshot) -> None:
        """Do nothing: `durable_io.py` has synced all files before the catalog names them."""

    def _append(self, state: PyIcebergTable, snapshot: SinkSnapshot, files: list[NewFile]) -> None:
        with self._transaction(state, snapshot) as (_, update), update.fast_append() as added:
            for file in files:
                added.append_data_file(self._data_file(state, file))

    def _overwrite(
        self, state: PyIcebergTable, snapshot: SinkSnapshot, files: list[NewFile]
    ) -> None:
        with self._transaction(state, snapshot) as (transaction, update):
            with update.delete() as removed:
                removed.delete_by_predicate(AlwaysTrue())
            with _update(transaction, snapshot).fast_append() as added:
                for file in files:
                    added.append_data_file(self._data_file(state, file))

    def _upsert(
        self,
        state: PyIcebergTable,
        snapshot: SinkSnapshot,
        changes: pa.Table,
        keys: tuple[str, ...],
    ) -> None:
        names = self._table.schema.names
        same = state.schema().schema_id == self._iceberg.schema_id
        if not same or not set(names) <= set(changes.schema.names):
            raise JobError(
                f"the columns of {self._table} have changed since output was staged for it, so "
                f"rows that are replaced would lose what is in the new ones. Start the job afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        written: list[NewFile] = []
        try:
            with self._transaction(state, snapshot) as (_, update), update.overwrite() as replaced:
                for task in state.scan(row_filter=_may_have(changes, keys)).plan_files():
                    scan = ArrowScan(state.metadata, state.io, state.schema(), AlwaysTrue())
                    # pyiceberg returns texts as large_string, but the schema here has string.
                    rows = scan.to_table([task]).cast(self._table.schema)
                    rest = without(rows, changes, list(keys))
                    if len(rest) != len(rows):
                        replaced.delete_data_file(task.file)
                        written += self._write(rest)
                new = changes.filter(pc.invert(changes[DELETED]))
                written += self._write(new.select(names))
                for file in written:
                    replaced.append_data_file(self._data_file(state, file))
        except ConflictError as conflict:
            # Remove the files only if the commit has certainly failed.
            if not isinstance(conflict.__cause__, CommitStateUnknownException):
                for file in written:
                    file.path.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def _transaction(
        self, state: PyIcebergTable, snapshot: SinkSnapshot
    ) -> Iterator[tuple[Transaction, UpdateSnapshot]]:
        """Begin a transaction, and commit it at the end of the block.

        The transaction also records the number of the job's snapshot.

        Raises:
            ConflictError: if another writer has committed to the table, or the result of the
                commit is unknown.
            JobError: if the table cannot be written for another reason.
        """
        transaction = state.transaction()
        transaction.set_properties({_property(snapshot): str(snapshot.number)})
        try:
            yield transaction, _update(transaction, snapshot)
            transaction.commit_transaction()
        except (CommitFailedException, CommitStateUnknownException, ValidationException) as error:
            raise ConflictError(str(error)) from error
        except JobError:
            raise
        except Exception as error:
            # Each kind of catalog has its own classes of errors.
            raise JobError(
                f"{self._table} cannot be written: {error}",
                recoverability=connector_recoverability(error),
            ) from error

    def _write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows to new data files in the table's folder, and sync the files to disk."""
        files = []
        for folder, mine in split(rows, self._iceberg.fields):
            if not len(mine):
                continue
            place = self._table.location / self._table.data / folder
            make_folders(place)
            path = place / f"part-{uuid.uuid4()}{EXTENSIONS['parquet']}"
            file = StagedFile(path, "parquet", self._table.schema)
            try:
                file.write(mine)
                file.seal()
            except BaseException:
                file.discard()
                raise
            files.append(NewFile(path, folder))
        return files

    def _data_file(self, state: PyIcebergTable, file: NewFile) -> DataFile:
        mine = self._iceberg
        schema = state.metadata.schema_by_id(mine.schema_id)
        assert schema is not None, "its identity was compared"
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(file.path),
            stats_columns=compute_statistics_plan(schema, state.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        # The path has the scheme `file://` only if the location of the table has it.
        path = f"{'file://' if state.location().startswith('file:') else ''}{file.path}"
        if mine.store is not None:
            path = mine.store.path(file.name)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*partition_values(file.folder, mine.fields, mine.schema)),
            file_size_in_bytes=file.path.stat().st_size,
            sort_order_id=None,
            spec_id=mine.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _property(snapshot: SinkSnapshot) -> str:
    return f"penstock.{snapshot.tag}.snapshot"


def _update(transaction: Transaction, snapshot: SinkSnapshot) -> UpdateSnapshot:
    return transaction.update_snapshot(
        snapshot_properties={
            "penstock.tag": snapshot.tag,
            "penstock.job": snapshot.lineage,
            "penstock.sink": snapshot.uid,
            "penstock.snapshot": str(snapshot.number),
        }
    )


def _may_have(changes: pa.Table, keys: tuple[str, ...]) -> BooleanExpression:
    """Return an Iceberg filter that selects all data files which may contain changed keys."""
    # Without a plugin for pydantic, mypy does not know the parameters of these classes.
    is_in: Any = In
    at_least: Any = GreaterThanOrEqual
    at_most: Any = LessThanOrEqual
    conditions: list[BooleanExpression] = []
    for key in keys:
        values = changes[key].unique().to_pylist()
        conditions.append(is_in(key, values))
        if values and not isinstance(values[0], bool | bytes):
            # Iceberg does not compare a long list of values with the minimum and maximum of files.
            conditions += [at_least(key, min(values)), at_most(key, max(values))]
    return And(*conditions) if len(conditions) > 1 else conditions[0]
