"""Pin the rows of a table as they are at one moment, in a folder of the job's own.

    pin.json        describes the pin; a folder is a pin because it has this file
    data/….parquet  the rows

The files of a plain Parquet table on the same file system are hard-linked, which costs nothing.
DROP or INSERT OVERWRITE remove the table's names of these files, and not the pin's. Spark writes
the rows of all other tables. *Plain* means that the files hold exactly the rows: no filter, no
computed or partition column, each column in each file with the type that the table has for it.

A pin is complete and durable when its folder appears under its name. It is created under a hidden
name, its files and `pin.json` are synced, and then it is renamed. It never changes. Its splits are
listed in `pin.json`, so that a position always means the same rows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.calendars import has_old_calendar
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import make_folders, sync_file, sync_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

__all__ = [
    "Pin",
    "PinnedSplit",
    "is_pin_id",
    "load_pin",
    "make_pin",
    "new_pin_id",
    "remove_pin",
    "spark_path",
]

_FORMAT = 1
_RECORD = "pin.json"
#: Number of rows up to which row groups of one file form one split.
SPLIT_ROWS = 128 * 1024
#: Approximate size of the row groups that Spark writes, in bytes: small, so that readers can
#: share a file.
ROW_GROUP_BYTES = 16 << 20
#: Settings with which Spark writes files for a pin, whatever the session's settings are. Spark's
#: default for timestamps has nanoseconds and ranges from 1677 to 2262; the calendar is Python's.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_SPARK_VERSION = b"org.apache.spark.version"


@dataclass(frozen=True)
class PinnedSplit:
    """Row groups of one file, read by one reader.

    Arguments:
        file: its name in the folder `data`.
        first_group, end_group: the row groups from `first_group` up to `end_group`, exclusive.
        rows: number of their rows.
    """

    file: str
    first_group: int
    end_group: int
    rows: int


@dataclass(frozen=True)
class Pin:
    """A complete pin.

    Arguments:
        folder: its path.
        linked: whether its files are links to the table's, and not written for the pin.
        schema: the columns and their Spark types.
        splits: all its splits, in order.
        files: by file, its size in bytes and its time of change in nanoseconds.
    """

    folder: Path
    linked: bool
    schema: pa.Schema
    splits: tuple[PinnedSplit, ...]
    files: dict[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(split.rows for split in self.splits)

    def path(self, split: PinnedSplit) -> Path:
        """Return the file of a split.

        Raises:
            StoreError: if the file is gone or has changed.
        """
        path = self.folder / "data" / split.file
        try:
            status = path.stat()
        except OSError as error:
            raise StoreError(
                f"a pinned file cannot be read: {error.strerror}; every worker must see the job's "
                f"folder, and nothing in it may be removed while the job can be resumed",
                path,
            ) from error
        if (status.st_size, status.st_mtime_ns) != self.files[split.file]:
            raise StoreError(
                "a pinned file was written to in place, so its rows may have changed: restore it, "
                "or start the job afresh",
                path,
            )
        return path


def spark_path(path: Path) -> str:
    """Return a local path as Spark needs it if its default file system is another.

    This is not `as_uri`, because Hadoop takes the path behind the scheme literally.
    """
    return f"file://{path}"


def new_pin_id() -> str:
    """Return a name for a pin, which sorts behind earlier ones."""
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"


def is_pin_id(name: str) -> bool:
    """Return whether `new_pin_id` made this name."""
    return re.fullmatch(r"[0-9]{13,}-[0-9a-f]{8}", name) is not None


def load_pin(folder: Path) -> Pin:
    """Read a pin's record.

    Raises:
        StoreError: if there is no pin, or if it has a later format.
    """
    import pyarrow as pa

    path = folder / _RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the rows that the job reads were pinned here, and the pin cannot be read: {error}; "
            f"restore it, or start the job afresh",
            path,
        ) from error
    if record["format"] > _FORMAT:
        raise StoreError(f"the pin has format {record['format']}: upgrade Penstock", path)
    return Pin(
        folder,
        record["linked"],
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"]))),
        tuple(PinnedSplit(*split) for split in record["splits"]),
        {name: (size, mtime) for name, size, mtime in record["files"]},
    )


def make_pin(frame: DataFrame, folder: Path, *, link: bool = True) -> Pin:
    """Pin the rows of a DataFrame, and block until the pin is durable.

    Arguments:
        frame: the DataFrame. It is evaluated once, so it may yield other rows, or another order,
            when it is evaluated again.
        folder: the path of the new pin; must not exist.
        link: whether to hard-link the table's files where possible.

    Raises:
        GraphError: if a column has a type that cannot be read.
        StoreError: if Spark did not write into this folder.
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
        _write_record(making, linked, schema, footers)
        making.rename(folder)
        sync_path(folder.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return load_pin(folder)


# ---- linking


def _link_files(frame: DataFrame, schema: pa.Schema, data: Path) -> dict[str, Any] | None:
    """Link the files of exactly these rows; return their footers by name, or None."""
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
            # This may be another file system, one without links, a file that was just replaced,
            # an encrypted one … Spark can read it, or reports the error.
            return None
        if not _is_plain(footers[name], schema):
            return None
    return footers


def _plain_files(frame: DataFrame) -> list[Path] | None:
    """Return the local Parquet files whose rows are exactly the DataFrame's, or None."""
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None:  # the plan of a Spark Connect session is out of reach
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
    """Return whether a file has the columns of a schema with their types."""
    if has_old_calendar(footer.metadata):
        return False
    leaves = [footer.schema.column(index) for index in range(len(footer.schema))]
    # Old timestamps of Spark carry neither a unit nor a mark that they are instants.
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
                # Writers name the parts of lists and maps as they like.
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


# ---- writing


def _write_files(frame: DataFrame, data: Path) -> dict[str, Any]:
    """Have Spark write the rows; return the footers of the files by name."""
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
            path.unlink()  # Hadoop's checksums and its mark of success
    return footers


@contextmanager
def _settings(frame: DataFrame, settings: dict[str, str]) -> Iterator[None]:
    """Change settings of the DataFrame's session in this block."""
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


# ---- the record


def _make_durable(data: Path, names: dict[str, Any]) -> None:
    for name in names:
        sync_path(data / name)
    sync_path(data)


def _write_record(
    folder: Path, linked: bool, schema: pa.Schema, footers: dict[str, pq.FileMetaData]
) -> None:
    files = []
    for name in footers:
        status = (folder / "data" / name).stat()
        files.append([name, status.st_size, status.st_mtime_ns])
    record = {
        "format": _FORMAT,
        "linked": linked,
        "columns": {field.name: str(field.type) for field in schema},
        "schema": base64.b64encode(schema.serialize()).decode("ascii"),
        "splits": [list(vars(split).values()) for split in _splits(footers)],
        "files": files,
    }
    with (folder / _RECORD).open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        sync_file(file)
    sync_path(folder)


def _splits(footers: dict[str, pq.FileMetaData]) -> Iterator[PinnedSplit]:
    for name, footer in footers.items():
        first, rows = 0, 0
        for group in range(footer.num_row_groups):
            more = footer.row_group(group).num_rows
            if rows and rows + more > SPLIT_ROWS:
                yield PinnedSplit(name, first, group, rows)
                first, rows = group, 0
            rows += more
        if rows:
            yield PinnedSplit(name, first, footer.num_row_groups, rows)


def remove_pin(folder: Path) -> None:
    """Remove a pin, beginning with its record: without it, the rest is not a pin."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _RECORD).unlink()
    shutil.rmtree(folder, ignore_errors=True)
