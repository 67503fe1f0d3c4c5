"""The sinks of Delta Lake and Iceberg tables, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.connectors.lake.delta import delta_table
from penstock.connectors.lake.iceberg import iceberg_table
from penstock.connectors.lake.iceberg_settings import checked_settings, divided_name
from penstock.connectors.lake.table_sink import TableSink
from penstock.connectors.lake.table_store import TableStore
from penstock.object_store import ObjectStore


class DeltaSink(TableSink):
    """Writes records as rows of a Delta table, exactly once, without Spark.

    One transaction of the table publishes each snapshot, and records its number. The table must
    exist. Records are dicts, dataclasses, named tuples, tuples in the order of the columns, or
    Arrow batches. (Flink: the Delta connector, `DeltaSink`.)

    Arguments:
        path: the folder of the table, on a file system with hard links that all workers see; or a
            URL such as `s3://bucket/table`, or an `ObjectStore`. A table in a store is only
            appended to.
        mode: the way in which output is published. With "append", the output of each snapshot is
            added to the table. With "overwrite", the job's output replaces all rows of the table
            when the job has read all of its input. With "upsert", the last record of each key
            replaces the row of that key.
        keys: the columns that identify a row, for "upsert" only. The stream must be keyed by them.
        is_delete: a function that returns whether a record deletes the row of its key, for "upsert"
            only.

    Raises:
        GraphError: if there is no such table, if it cannot be written exactly once, if an argument
            is not valid, or if deltalake is missing.

    Examples:
        >>> import deltalake
        >>> schema = deltalake.Schema([deltalake.Field("n", "long")])
        >>> _ = deltalake.DeltaTable.create("numbers", schema)
        >>> _ = env.from_collection([{"n": 1}, {"n": 2}]).sink_to(DeltaSink("numbers"))
        >>> _ = env.execute("numbers")
        >>> sorted(deltalake.DeltaTable("numbers").to_pyarrow_table()["n"].to_pylist())
        [1, 2]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ObjectStore,
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        is_delete: Callable[[Any], bool] | None = None,
    ) -> None:
        place = TableStore(path)
        table = delta_table(place if place.folder is None else place.folder)
        self._use(table, mode, keys, is_delete)

    @property
    def location(self) -> object:
        """The folder or the URL of the table."""
        return self.table.name or self.table.location


class IcebergSink(TableSink):
    """Writes records as rows of an Iceberg table, exactly once, without Spark.

    One transaction of the table publishes each snapshot, and records its number in a property of
    the table and in the summary of the Iceberg snapshot. The table must exist. Records are dicts,
    dataclasses, named tuples, tuples in the order of the columns, or Arrow batches. (Flink: the
    Iceberg connector, `FlinkSink`.)

    Arguments:
        table: the name of the table with its catalog and namespace, such as `lake.sales.orders`.
        catalog: the settings with which pyiceberg connects to the catalog, as for
            `pyiceberg.catalog.load_catalog`. Secrets are refused here, because settings travel with
            the job; pyiceberg reads them from `~/.pyiceberg.yaml` or the environment.
        mode, keys, is_delete: as for `DeltaSink`.
        store: an `ObjectStore` of the bucket that has the table, if it is in an object store. It is
            for the data files; pyiceberg reaches the metadata with its own settings.

    Raises:
        GraphError: if there is no such table, if it cannot be written exactly once, if an argument
            is not valid, or if pyiceberg is missing.

    Examples:
        >>> from pyiceberg.catalog import load_catalog
        >>> from pyiceberg.schema import Schema
        >>> from pyiceberg.types import LongType, NestedField
        >>> settings = {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "file:///tmp/x"}
        >>> sink = IcebergSink("lake.db.numbers", settings)  # doctest: +SKIP
    """

    def __init__(
        self,
        table: str,
        catalog: Mapping[str, str],
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        is_delete: Callable[[Any], bool] | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        name, identifier = divided_name(table)
        found = iceberg_table(name, list(identifier), checked_settings(name, catalog), store)
        self._use(found, mode, keys, is_delete)

    @property
    def location(self) -> object:
        """The folder of the table."""
        return self.table.location
