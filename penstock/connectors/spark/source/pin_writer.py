"""Pin the rows of a DataFrame: link the files of its table, or let Spark write new files.

The files of a plain Parquet table on the same file system are hard-linked, which copies no data.
DROP and INSERT OVERWRITE remove the table's links to these files. The pin's links stay. For all
other tables, Spark writes the rows to new files. A table is *plain* if its files hold exactly the
rows of the DataFrame. There is no filter, no computed column and no partition column. Every file
has every column with the type that the column has in the table.

A pin is created under a hidden name. When its files and `pin.json` are synced to disk, the pin is
renamed to its final name.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.lake.calendars import has_old_calendar
from penstock.connectors.spark.source.pin import Pin, load_pin, write_record
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import make_folders, sync_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

#: The approximate size of the row groups that Spark writes, in bytes. It is small, so that several
#: readers can share a file.
ROW_GROUP_BYTES = 16 << 20
#: The Spark settings for writing the files of a pin. They replace the settings of the session.
#: Timestamps have microseconds and not Spark's default INT96, which only covers the years 1677 to
#: 2262. CORRECTED selects the same calendar as Python's.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_SPARK_VERSION = b"org.apache.spark.version"


def make_pin(frame: DataFrame, folder: Path, *, link: bool = True) -> Pin:
    """Pin the rows of a DataFrame, and block until the pin is durable.

    Arguments:
        frame: the DataFrame. Spark evaluates it only once, so it need not be deterministic.
        folder: the path of the new pin. It must not exist.
        link: whether to hard-link the table's files if possible.

    Raises:
        GraphError: if a column has a type that cannot be read.
        StoreError: if the files that Spark wrote are not in this folder.
    """
    schema = arrow_schema(frame.schema)
    make_folders(folder.parent)
    making = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    data = making / "data"
    data.mkdir(parents=True)
    try:
        footers = _link_files(frame, schema, data) if link else None
        linked = footers is not None
        if footers is None:
            shutil.rmtree(data)
            footers = _write_files(frame, data)
        _make_durable(data, footers)
        write_record(making, linked, schema, footers)
        making.rename(folder)
        sync_path(folder.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return load_pin(folder)


def _make_durable(data: Path, names: dict[str, Any]) -> None:
    for name in names:
        sync_path(data / name)
    sync_path(data)


def _link_files(frame: DataFrame, schema: pa.Schema, data: Path) -> dict[str, Any] | None:
    """Hard-link the table's files into the pin, if the table is plain.

    Returns:
        The Parquet footers of the links, keyed by file name. None if the files cannot be linked.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sources = _plain_files(frame)
    if sources is None:
        return None
    footers = {}
    for index, source in enumerate(sources):
        name = f"part-{index:05d}.parquet"
        try:
            (data / name).hardlink_to(source)
            footers[name] = pq.read_metadata(data / name)
        except (OSError, pa.ArrowException):
            # The table may be on another file system, or on one without links. A file may also be
            # encrypted or already replaced. Spark then reads the table, or reports the error.
            return None
        if not _is_plain(footers[name], schema):
            return None
    return footers


def _plain_files(frame: DataFrame) -> list[Path] | None:
    """Find the local Parquet files whose rows are exactly the rows of the DataFrame.

    Returns:
        The paths of the files. None if the DataFrame is not a plain Parquet table.
    """
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None:  # This is a Spark Connect session. Its plan exists only in the server.
        return None
    plan = plan.queryExecution().analyzed()
    while (name := plan.getClass().getSimpleName()) in ("SubqueryAlias", "Project"):
        if name == "Project":
            columns = plan.projectList()
            for index in range(columns.size()):
                if columns.apply(index).getClass().getSimpleName() != "AttributeReference":
                    return None
        plan = plan.child()
    if name != "LogicalRelation":
        return None
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    if not relation.fileFormat().getClass().getName().endswith(".parquet.ParquetFileFormat"):
        return None
    if not relation.partitionSchema().isEmpty():
        return None
    return _local_paths(frame.inputFiles())


def _local_paths(uris: Sequence[str]) -> list[Path] | None:
    from urllib.parse import unquote, urlsplit

    paths = []
    for uri in sorted(uris):
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc:
            return None
        paths.append(Path(unquote(parts.path)))
    return paths


def _is_plain(footer: pq.FileMetaData, schema: pa.Schema) -> bool:
    """Return whether a file has all columns of a schema with the same types."""
    if has_old_calendar(footer.metadata):
        return False
    leaves = [footer.schema.column(index) for index in range(len(footer.schema))]
    # The type INT96 does not show whether a timestamp is an instant. If Spark wrote the file, its
    # INT96 timestamps are instants.
    instants = any(leaf.physical_type == "INT96" for leaf in leaves)
    if instants and _SPARK_VERSION not in (footer.metadata or {}):
        return False
    found = footer.schema.to_arrow_schema()
    return all(
        found.get_field_index(field.name) >= 0
        and _same_type(found.field(field.name).type, field.type, instants)
        for field in schema
    )


def _same_type(found: pa.DataType, wanted: pa.DataType, instants: bool) -> bool:
    import pyarrow.types as at

    if at.is_nested(wanted):
        return (
            at.is_nested(found)
            and found.id == wanted.id
            and found.num_fields == wanted.num_fields
            and all(
                # Names are compared for structs only. Within lists and maps, writers choose them.
                (not at.is_struct(wanted) or found.field(i).name == wanted.field(i).name)
                and _same_type(found.field(i).type, wanted.field(i).type, instants)
                for i in range(wanted.num_fields)
            )
        )
    if at.is_timestamp(wanted) and at.is_timestamp(found):
        return (found.tz is not None or instants) == (wanted.tz is not None)
    if at.is_duration(wanted) and at.is_int64(found):
        return True
    return bool(found.equals(wanted))


def _write_files(frame: DataFrame, data: Path) -> dict[str, Any]:
    """Let Spark write the rows of a DataFrame to Parquet files in the folder `data`.

    Returns:
        The Parquet footers of the files, keyed by file name.

    Raises:
        StoreError: if the folder does not contain all the rows that Spark wrote.
    """
    import pyarrow.parquet as pq
    from pyspark.sql import Observation
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    written = Observation()
    columns = []
    for field in frame.schema.fields:
        column = f.col("`" + field.name.replace("`", "``") + "`")
        if isinstance(field.dataType, t.VariantType):
            column = f.to_json(column).alias(field.name)
        columns.append(column)
    counted = frame.select(*columns).observe(written, f.count(f.lit(1)).alias("rows"))
    with _settings(frame, _WRITING):
        writer = counted.write.option("parquet.block.size", ROW_GROUP_BYTES)
        writer.option("compression", "snappy").parquet(spark_path(data))
    names = sorted(path.name for path in data.glob("part-*")) if data.exists() else []
    footers = {name: pq.read_metadata(data / name) for name in names}
    rows = sum(footer.num_rows for footer in footers.values())
    if rows != written.get["rows"]:
        raise StoreError(
            f"Spark wrote {written.get['rows']} rows, and {rows} are here: the job's folder must "
            f"be on a file system that all of Spark's executors see under this path",
            data,
        )
    for path in data.iterdir():
        if path.name not in footers:
            path.unlink()  # This is a checksum file or the file _SUCCESS, both written by Hadoop.
    return footers


@contextmanager
def _settings(frame: DataFrame, settings: dict[str, str]) -> Iterator[None]:
    """Change settings of the DataFrame's session, and restore them after the block."""
    conf = frame.sparkSession.conf
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                conf.unset(name)
            else:
                conf.set(name, old)


def spark_path(path: Path) -> str:
    """Return the URI by which Spark accesses a local path.

    Without the scheme `file://`, Spark would use its default file system. `Path.as_uri` is not
    used, because it escapes characters and Hadoop does not decode them.
    """
    return f"file://{path}"
