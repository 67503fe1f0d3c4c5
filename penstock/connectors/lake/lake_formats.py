"""Create the log, the writer and the committer for a Delta or Iceberg table.

The packages deltalake and pyiceberg are optional. So a module that uses one of them is imported
only when a table of its format is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.connectors.lake.delta import DeltaLakeTable
from penstock.connectors.lake.iceberg import IcebergTable
from penstock.connectors.lake.iceberg_writer import IcebergChangeWriter, IcebergWriter
from penstock.connectors.lake.lake_committers import (
    LakeCommitter,
    LakeOverwriteCommitter,
    LakeUpsertCommitter,
)
from penstock.connectors.lake.store_committer import StoreCommitter
from penstock.connectors.lake.table_log import LakeTable, TableLog
from penstock.connectors.lake.writers import ChangeWriter, RowWriter
from penstock.dataflow.sink import Committer, SinkWriter, WriterContext


def open_log(table: LakeTable) -> TableLog[Any]:
    """Create the object that performs transactions in the log of a table.

    Raises:
        TypeError: if the table has an unknown format.
    """
    match table:
        case DeltaLakeTable():
            from penstock.connectors.lake.delta_log import DeltaLog

            return DeltaLog(table)
        case IcebergTable():
            from penstock.connectors.lake.iceberg_log import IcebergLog

            return IcebergLog(table)
    raise TypeError(f"{type(table).__name__} is the table of no known format")


def create_writer(
    table: LakeTable,
    context: WriterContext,
    mode: str,
    keys: tuple[str, ...],
    is_delete: Callable[[Any], bool] | None,
) -> SinkWriter:
    """Create the writer that stages rows for a table.

    Arguments:
        table: the table that receives the rows.
        context: the context of the writer.
        mode: the sink's mode: "append", "overwrite" or "upsert".
        keys: the sink's key columns, for "upsert".
        is_delete: the sink's function that returns whether a record deletes a row, for "upsert".
    """
    if isinstance(table, IcebergTable):
        if mode == "upsert":
            return IcebergChangeWriter(table, context, keys, is_delete)
        return IcebergWriter(table, context, collected=mode == "overwrite")
    if mode == "upsert":
        return ChangeWriter(table, context, keys, is_delete)
    return RowWriter(table, context, collected=mode == "overwrite")


def create_committer(table: LakeTable, mode: str, keys: tuple[str, ...]) -> Committer:
    """Create the committer that publishes staged rows of a table.

    Arguments:
        table: the table that receives the rows.
        mode: the sink's mode: "append", "overwrite" or "upsert".
        keys: the sink's key columns, for "upsert".
    """
    log = open_log(table)
    if table.store is not None:
        assert table.store.store is not None
        return StoreCommitter(table, log, table.store.store)
    if mode == "upsert":
        return LakeUpsertCommitter(table, log, keys)
    if mode == "overwrite":
        return LakeOverwriteCommitter(table, log)
    return LakeCommitter(table, log)
