"""Write the output of a job as rows of a Spark table, exactly once.

The folder `connectors/lake` stages data files in the table's own folder, under names that Spark
does not read, and publishes them. The workers need no JVM.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.folders import local_path
from penstock.connectors.lake.data_file import EXTENSIONS
from penstock.connectors.lake.replacing_committers import (
    OverwriteCommitter,
    UpsertCommitter,
)
from penstock.connectors.lake.table import (
    Table,
    arrow_schema,
    is_interval,
    require_partition_column,
)
from penstock.connectors.lake.table_committer import TableCommitter
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.lake.table_sink import TableSink
from penstock.connectors.spark.active_session import require_spark, spark_session
from penstock.connectors.spark.sink.access import Access, runner
from penstock.connectors.spark.sink.catalog import SparkCatalogs
from penstock.connectors.spark.sink.described_table import describe_table
from penstock.connectors.spark.sink.table_lookup import find_table, find_table_in_session
from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import Committer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class SparkTableSink(TableSink):
    """Writes records as rows of a Spark table in Parquet, ORC, Delta Lake or Iceberg.

    The table may be partitioned. It must exist when the program creates the sink. A record is a
    dict, a dataclass, a named tuple or a PySpark `Row` with the column names as field names. It may
    also be a plain tuple, with its values in the order of `spark.table(name).columns`. Partition
    columns come last in this order.

    Arguments:
        table: the name of the table in the catalog, as in SQL. ``delta.`/path` `` is a Delta table
            without a catalog, which needs no session.
        mode: the way in which output is published. With "append", the output of each snapshot is
            added to the table. With "overwrite", the job's output replaces all rows of the table
            when the job has read all of its input. With "upsert", the last record of each key
            replaces the row of that key.
        keys: the columns that identify a row, for "upsert" only. They must include the table's
            partition columns (except for Delta Lake and Iceberg). The stream must be keyed by them.
        is_delete: a function that returns whether a record deletes the row of its key, for "upsert"
            only. Only the key columns of such a record are used.
        spark: the session whose catalog has the table. By default, it is the active session, or a
            new one if there is none.
        iceberg_catalog: the settings with which pyiceberg connects to the catalog that the table's
            name begins with, as for `pyiceberg.catalog.load_catalog`. Then no session is needed. By
            default, the settings are taken from the session.

    Raises:
        GraphError: if there is no such table, if it cannot be written exactly once, if an
            argument is not valid, or if pyspark is missing.

    Examples:
        >>> spark = spark_session()
        >>> _ = spark.sql("CREATE TABLE ages (name STRING, age BIGINT) USING parquet")
        >>> _ = env.from_collection([("ann", 31), ("bob", 27)]).sink_to(SparkTableSink("ages"))
        >>> _ = env.execute("ages")
        >>> sorted(tuple(row) for row in spark.table("ages").collect())
        [('ann', 31), ('bob', 27)]
    """

    def __init__(
        self,
        table: str,
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        is_delete: Callable[[Any], bool] | None = None,
        spark: SparkSession | None = None,
        iceberg_catalog: Mapping[str, str] | None = None,
    ) -> None:
        found = find_table(table, iceberg_catalog)
        if found is not None:
            self._set_up(found, None, mode, keys, is_delete)
            return
        require_spark()
        session = spark_session() if spark is None else spark
        found = find_table_in_session(session, table)
        if found is not None:
            self._set_up(found, None, mode, keys, is_delete)
            return
        try:
            fields = session.table(table).schema.jsonValue()["fields"]
        except Exception as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise GraphError(f"SparkTableSink finds no table {table!r}: {reason}") from error
        described = describe_table(runner(session), table, arrow_schema(fields))
        self._set_up(described, Access.of(session), mode, keys, is_delete)

    @classmethod
    def at_path(
        cls,
        path: str | os.PathLike[str],
        schema: pa.Schema | StructType,
        *,
        format: str = "parquet",
        partition_by: Sequence[str] = (),
        mode: str = "append",
        keys: Sequence[str] = (),
        is_delete: Callable[[Any], bool] | None = None,
    ) -> SparkTableSink:
        """Create a sink for a table that is only a folder, without Spark.

        Spark reads such a table with `spark.read.parquet(path)`, for example.

        Arguments:
            path: the path of the folder. The folder is created if it does not exist.
            schema: the names and types of all columns, in the order of plain tuples.
            format: "parquet" or "orc".
            partition_by: the names of the partition columns, outermost first.
            mode: the mode, as for a table with a name.
            keys: the key columns for "upsert", as for a table with a name.
            is_delete: the function for "upsert", as for a table with a name.

        Raises:
            GraphError: if an argument is not valid.
        """
        if format not in EXTENSIONS:
            raise GraphError(f"the format of a SparkTableSink is parquet or orc, not {format!r}")
        if not isinstance(schema, pa.Schema):
            schema = arrow_schema(schema.jsonValue()["fields"])
        for column in schema:
            if is_interval(column):
                raise GraphError(
                    f"the column {column.name!r} is an interval or has one in it, and a folder of "
                    f"files does not record that its numbers are one: write to a table of a catalog"
                )
        for name in partition_by:
            if name not in schema.names:
                raise GraphError(f"the partition column {name!r} is not in the schema")
            require_partition_column(schema.field(name))
        sink = cls.__new__(cls)
        table = Table(None, local_path(path), format, schema, tuple(partition_by))
        sink._set_up(table, None, mode, keys, is_delete)
        return sink

    def create_committer(self) -> Committer:
        """Create the committer for the table's format and the sink's mode."""
        if isinstance(self.table, LakeTable):
            return super().create_committer()
        catalogs = None if self._access is None else SparkCatalogs(self._access)
        if self.mode == "upsert":
            return UpsertCommitter(self.table, catalogs, self.keys)
        if self.mode == "overwrite":
            return OverwriteCommitter(self.table, catalogs)
        return TableCommitter(self.table, catalogs)

    def _set_up(
        self,
        table: Table,
        access: Access | None,
        mode: str,
        keys: Sequence[str],
        is_delete: Callable[[Any], bool] | None,
    ) -> None:
        self._access = access
        if table.format == "orc":
            table = dataclasses.replace(table, schema=_for_orc(table))
        self._use(table, mode, keys, is_delete)


def _for_orc(table: Table) -> pa.Schema:
    """Return the schema for ORC files.

    Raises:
        GraphError: if Spark would read other values from a column than Arrow writes.
    """
    fields = []
    for column in table.schema:
        nested = pa.types.is_nested(column.type) and re.search("timestamp|date", str(column.type))
        if nested or (pa.types.is_timestamp(column.type) and column.type.tz is not None):
            raise GraphError(
                f"{table} has the column {column.name!r} of type {column.type} in ORC, and what "
                f"Arrow writes there Spark reads otherwise in old years: use TIMESTAMP_NTZ for "
                f"TIMESTAMP, no times and dates in nested types, or USING parquet"
            )
        if pa.types.is_date(column.type) and column.name not in table.partition_by:
            # In ORC files, Spark reads dates before this day in the Julian calendar.
            column = column.with_metadata({"since": "1582-10-15"})
        fields.append(column)
    return pa.schema(fields)
