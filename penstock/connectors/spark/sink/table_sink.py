"""Make the output of a job the rows of a Spark table, exactly once.

Writers (`writers.py`) stage data files in the table's own folder, under a name that Spark does not
read; no worker has a JVM. `table_committer.py` and `replacing_committers.py` publish them. The
folder `lake` does so for Delta Lake and Iceberg.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.file_sink import STAGING
from penstock.connectors.folders import local_path
from penstock.connectors.spark.active_session import require_spark, spark_session
from penstock.connectors.spark.sink import lake
from penstock.connectors.spark.sink.access import Access, runner
from penstock.connectors.spark.sink.data_file import EXTENSIONS
from penstock.connectors.spark.sink.lake import LakeTable
from penstock.connectors.spark.sink.replacing_committers import (
    OverwriteCommitter,
    UpsertCommitter,
)
from penstock.connectors.spark.sink.table import (
    Table,
    arrow_schema,
    describe_table,
    is_interval,
    require_partition_column,
)
from penstock.connectors.spark.sink.table_committer import TableCommitter
from penstock.connectors.spark.sink.writers import ChangeWriter, RowWriter
from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import Committer, Sink, SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import make_folders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["SparkTableSink"]


class SparkTableSink(Sink):
    """Writes rows of a Spark table: Parquet, ORC, Delta Lake or Iceberg.

    A table may be partitioned. It is looked up here, in the program, so it must exist. Records are
    dicts, dataclasses, named tuples or PySpark `Row`s, by field name, or plain tuples in the order
    of the columns, which is that of `spark.table(name).columns`: partition columns last.

    Arguments:
        table: its name in the catalog, as in SQL. ``delta.`/path` `` is a Delta table that is in
            no catalog; it needs no session.
        mode: "append": each snapshot's output becomes rows of the table. "overwrite": the table
            keeps its rows until the job has read all of its input, then has the job's output and
            nothing else. "upsert": the last record of each key is the row of that key.
        keys: for "upsert", the columns that identify a row; the table's partition columns must
            be among them, and the stream must be keyed by them.
        is_delete: for "upsert", returns whether a record deletes the row of its key; only the keys
            of such a record are used.
        spark: the session whose catalog has the table; by default the active one, or else a new
            one.
        iceberg_catalog: how pyiceberg reaches the catalog that the table's name begins with, as
            for `pyiceberg.catalog.load_catalog`; then no session is needed. By default this is
            taken from the session's settings.

    Raises:
        GraphError: if there is no such table, if it cannot be written exactly once, if an
            argument is wrong, or if pyspark is missing.
    """

    exactly_once = True

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
        found = lake.find_table(table, iceberg_catalog)
        if found is not None:
            self._set_up(found, None, mode, keys, is_delete)
            return
        require_spark()
        session = spark_session() if spark is None else spark
        found = lake.find_table_in_session(session, table)
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
        """Write a table that is a folder, as `spark.read.parquet(path)` reads it.

        This needs no Spark.

        Arguments:
            path: the folder; created if it is missing.
            schema: names and types of all columns, in the order of plain tuples.
            format: "parquet" or "orc".
            partition_by: partition columns, outermost first.
            mode: as for a table with a name.
            keys: for "upsert", as for a table with a name.
            is_delete: for "upsert", as for a table with a name.

        Raises:
            GraphError: if an argument is wrong.
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

    def _set_up(
        self,
        table: Table,
        access: Access | None,
        mode: str,
        keys: Sequence[str],
        is_delete: Callable[[Any], bool] | None,
    ) -> None:
        self.table = table
        self.mode = mode
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.is_delete = is_delete
        self._access = access
        # An overwriting sink collects the output of one line of snapshots, from its beginning.
        self.needs_all_output = mode == "overwrite"
        if mode not in ("append", "overwrite", "upsert"):
            raise GraphError(
                f"the mode of a SparkTableSink is append, overwrite or upsert, not {mode!r}"
            )
        if isinstance(table, LakeTable):
            table.require_mode(mode)
        if table.format == "orc":
            self.table = table = dataclasses.replace(table, schema=_for_orc(table))
        if mode != "upsert":
            if self.keys or is_delete is not None:
                raise GraphError(f"keys and is_delete are for mode='upsert', not for {mode!r}")
            if len(table.partition_by) == len(table.schema):
                raise GraphError(f"all columns of {table} are partition columns")
            return
        if not self.keys:
            raise GraphError("mode='upsert' needs keys=[…]: the columns that identify a row")
        for key in self.keys:
            if key not in table.schema.names:
                raise GraphError(f"the key {key!r} is no column of {table}")
            kind = table.schema.field(key).type
            if (
                pa.types.is_nested(kind)
                or pa.types.is_floating(kind)
                or is_interval(table.schema.field(key))
            ):
                raise GraphError(f"the column {key!r} of type {kind} cannot be a key")
        for name in table.partition_by:
            if name not in self.keys and not isinstance(table, LakeTable):
                raise GraphError(
                    f"{table} is partitioned by {name!r}, which is not one of the keys "
                    f"{list(self.keys)}: a row might move to another partition, and its old one "
                    f"could be anywhere. Make it a key, or partition the table otherwise"
                )

    @property
    def folder(self) -> Path:
        """The folder of the table, which workers and the JobManager must both see."""
        return self.table.location

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Create a writer that stages rows."""
        if isinstance(self.table, LakeTable):
            return lake.create_writer(self.table, context, self.mode, self.keys, self.is_delete)
        if self.mode == "upsert":
            return ChangeWriter(self.table, context, self.keys, self.is_delete)
        return RowWriter(self.table, context, collected=self.mode == "overwrite")

    def create_committer(self) -> Committer:
        """Create the committer of the mode."""
        if isinstance(self.table, LakeTable):
            return lake.create_committer(self.table, self.mode, self.keys)
        if self.mode == "upsert":
            return UpsertCommitter(self.table, self._access, self.keys)
        if self.mode == "overwrite":
            return OverwriteCommitter(self.table, self._access)
        return TableCommitter(self.table, self._access)

    def validate(self) -> None:
        """Check that the table's folder can be written and supports hard links.

        Raises:
            GraphError: if it cannot or does not.
        """
        staging = self.table.location / STAGING
        probe = staging / f"probe-{os.getpid()}"
        second = probe.with_suffix(".link")
        try:
            make_folders(staging)
            probe.unlink(missing_ok=True)
            second.unlink(missing_ok=True)
            probe.touch()
            second.hardlink_to(probe)
            try:
                second.hardlink_to(probe)
            except FileExistsError:
                return
            raise GraphError(
                f"{self.table} cannot be written exactly once: the file system of {staging} makes "
                f"a link over a name that exists already"
            )
        except OSError as error:
            raise GraphError(
                f"{self.table} cannot be written exactly once: a link in {staging} cannot be made "
                f"({error.strerror or error}). Its file system must have hard links"
            ) from error
        finally:
            probe.unlink(missing_ok=True)
            second.unlink(missing_ok=True)


def _for_orc(table: Table) -> pa.Schema:
    """Return the columns as ORC stores them; refuse those Spark reads otherwise."""
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
            # Spark reads earlier days as days of the Julian calendar.
            column = column.with_metadata({"since": "1582-10-15"})
        fields.append(column)
    return pa.schema(fields)
