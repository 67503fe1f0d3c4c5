"""Describe a table of plain files for a sink, and name the folders of its partitions.

A `Table` is plain data. The user's program reads it from Spark's catalog once, and submits it as
part of the job. Each staged file records the *identity* of the table. Before the committer
publishes the file, it compares this identity with the table in the catalog.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.connectors.lake.record_encoding import CATALYST_TYPE
from penstock.connectors.staged_files import STAGING, make_staging
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.sink import WriterContext

#: The name that Hadoop and Spark give to a partition whose value is NULL.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: Pattern of a character that Spark escapes in names of partition folders (ExternalCatalogUtils).
_ESCAPED = re.compile(r"[\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
#: The maximum length of a file name in common file systems, in bytes.
_NAME_BYTES = 255


@dataclass(frozen=True)
class Table:
    """A table of plain files.

    Arguments:
        name: the table's name in the catalog, each part quoted; None if the table is only a folder.
        location: the folder of the table.
        format: the format of the data files, "parquet" or "orc".
        schema: all columns, in the table's order.
        partition_by: the names of the partition columns, outermost first.
        registered: whether the catalog lists the table's partitions.
        identity: plain values that differ if another table has taken the table's name.
    """

    name: str | None
    location: Path
    format: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    registered: bool = False
    identity: dict[str, Any] = field(default_factory=dict)
    #: The folder of data files, relative to `location`: "", or a name with a "/" at its end.
    data: str = ""

    def staging(self, context: WriterContext) -> Path:
        """Return the folder of staged files."""
        del context
        return self.location / STAGING

    def make_staging(self, context: WriterContext) -> None:
        """Create the folder of staged files, if it does not exist."""
        del context
        make_staging(self.location)

    def __str__(self) -> str:
        return f"table {self.name.replace('`', '')}" if self.name else f"table {self.location}"


def difference(now: dict[str, Any], before: dict[str, Any]) -> str | None:
    """Return a string that describes the first difference between two identities, or None.

    Added columns do not count as a difference. Rows in older files have NULL in these columns.
    """
    for key in before:
        if key != "columns" and now[key] != before[key]:
            return f"its {key}: {now[key]!r} now, {before[key]!r} then"
    for name, kind in before["columns"].items():
        if now["columns"].get(name) != kind:
            change = "has another type" if name in now["columns"] else "is gone"
            return f"its column {name!r} {change}"
    return None


def local_folder(name: str, location: str) -> Path:
    """Return the path of a table's location in a local or mounted file system.

    Raises:
        GraphError: if the location has another scheme than `file`.
    """
    # Spark returns a Hadoop path, which has a scheme like a URI but no escaped characters.
    scheme, colon, path = location.partition(":/")
    if not colon:
        scheme, path = "", location
    elif not path.startswith("/"):
        path = "/" + path
    if scheme not in ("", "file"):
        raise GraphError(
            f"the sink cannot write {name!r} exactly once: its location {location} is not in "
            f"a local or mounted file system. A file is published by a hard link, which makes a "
            f"name or fails if it is there; {scheme}: has no such step"
        )
    return Path(re.sub("^/+", "/", path))


def arrow_schema(fields: Iterable[dict[str, Any]]) -> pa.Schema:
    """Convert a schema from Spark's JSON form to Arrow.

    Arguments:
        fields: the fields of the schema, each in Spark's JSON form.

    Raises:
        GraphError: if a field has a type that the sink cannot write.
    """
    return pa.schema([_arrow_field(f) for f in fields])


def _arrow_field(spark: dict[str, Any]) -> pa.Field:
    metadata = {}
    text = str(spark.get("metadata", {}).get("__CHAR_VARCHAR_TYPE_STRING", spark["type"]))
    if match := re.fullmatch(r"(char|varchar)\((\d+)\)", text):
        metadata = {match[1]: match[2]}
    kind = "string" if metadata else spark["type"]
    try:
        return _field(spark["name"], kind, spark["nullable"], metadata)
    except GraphError as error:
        raise GraphError(f"column {spark['name']!r}: {error}") from None


def _field(name: str, kind: Any, nullable: bool, metadata: dict[str, str]) -> pa.Field:
    if str(kind).startswith("interval "):
        metadata = {CATALYST_TYPE: kind}
    return pa.field(name, _arrow_type(kind), nullable, metadata or None)


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, dict):
        match kind["type"]:
            case "array":
                return pa.list_(_field("element", kind["elementType"], kind["containsNull"], {}))
            case "map":
                return pa.map_(
                    _field("key", kind["keyType"], False, {}),
                    _field("value", kind["valueType"], kind["valueContainsNull"], {}),
                )
            case "struct":
                return pa.struct([_arrow_field(f) for f in kind["fields"]])
            case other:
                kind = other
    if match := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"interval (\w+)( to \w+)?", kind):
        return pa.int32() if match[1] in ("year", "month") else pa.duration("us")
    if kind not in _TYPES:
        raise GraphError(f"the sink cannot write the type {kind}")
    return _TYPES[kind]


_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def is_interval(column: pa.Field) -> bool:
    """Return whether the type of a column is an interval, or contains an interval."""
    kind = column.type
    return (
        pa.types.is_duration(kind)
        or CATALYST_TYPE.encode() in (column.metadata or {})
        or any(is_interval(kind.field(i)) for i in range(kind.num_fields))
    )


# ---- partitions


def require_partition_column(column: pa.Field) -> None:
    """Check that a column can be a partition column of a table that the sink writes.

    Raises:
        GraphError: if Spark hides folders of the column's name, or the way in which Spark writes
            the column's type in a folder's name depends on settings.
    """
    kind = column.type
    if column.name[0] in "_.":
        raise GraphError(f"the partition column {column.name!r} would make hidden folders")
    if is_interval(column) or not (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
    ):
        raise GraphError(
            f"the sink cannot write a table that is partitioned by {column.name!r} of type "
            f"{kind}: how such a value is written in a folder's name depends on settings of the "
            f"session. Partition by a whole number, a date, a text or a boolean"
        )


def partition_folder(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return the path of a partition's folder, relative to the folder of the data files.

    The path has Spark's form, such as `a=1/b=x`.

    Raises:
        JobError: if Spark would read a value back as NULL, or if a value cannot name a folder.
    """
    return "/".join(
        folder_name(n, escape(_value_text(n, v))) for n, v in zip(names, values, strict=True)
    )


def folder_name(column: str, text: str) -> str:
    """Return the name of one folder in the path of a partition.

    Arguments:
        column: the name of the partition column.
        text: the escaped value of the column.

    Raises:
        JobError: if the name is longer than 255 bytes or contains a NUL character.
    """
    name = f"{escape(column)}={text}"
    size = len(name.encode())
    if size > _NAME_BYTES or "\0" in name:
        wrong = "has a NUL character" if "\0" in name else f"has {size} bytes"
        raise JobError(
            f"the partition column {column!r} has a value that cannot name a folder: "
            f"{name[:40]!r}… {wrong}, and a name has up to {_NAME_BYTES} bytes and no NUL"
        )
    return name


def _value_text(name: str, value: Any) -> str:
    if value is None:
        return NULL_PARTITION
    if value in ("", NULL_PARTITION):
        raise JobError(
            f"the partition column {name!r} is {value!r}, which Spark reads back as NULL: "
            f"write None, or another text"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def escape(text: str) -> str:
    """Escape the special characters of a text, as Spark does in names of partition folders."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_literals(folder: str, schema: pa.Schema) -> str:
    """Return the SQL clause `PARTITION (…)` for the partition in a folder."""
    parts = []
    for part in folder.split("/"):
        name, _, text = part.partition("=")
        column = schema.field(unquote(name))
        value = unquote(text)
        quoted = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        if text == NULL_PARTITION:
            literal = "NULL"
        elif pa.types.is_string(column.type):
            literal = quoted
        else:
            literal = f"DATE{quoted}" if pa.types.is_date(column.type) else _bare(value)
        parts.append(f"`{column.name.replace('`', '``')}`={literal}")
    return f"PARTITION ({', '.join(parts)})"


def _bare(value: str) -> str:
    """Return a text that is a whole number or a boolean, for use in an SQL statement.

    Raises:
        JobError: if the text is neither.
    """
    if not re.fullmatch(r"-?[0-9]+|true|false", value):
        raise JobError(f"{value!r} is no value of a partition column")
    return value
