"""Stage rows for an Iceberg table; each file holds rows of one partition.

Each partition has a folder such as `d_day=19000/p=x`, as in a table of plain files. When a file is
committed, `partition_values` parses the partition values from the path of the folder. Iceberg
itself does not use the names of folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.lake.iceberg import IcebergTable, PartitionField
from penstock.connectors.lake.table import NULL_PARTITION, escape, folder_name
from penstock.connectors.lake.writers import ChangeWriter, RowWriter, TableWriter

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType


class _ByFields(TableWriter):
    """Assigns rows to partitions by fields that are computed from columns; a mixin of writers."""

    def partitions(self, rows: pa.Table) -> list[tuple[Any, ...]] | None:
        """Return the partition of each row; None if the table has no partitions."""
        return _partitions(rows, self._fields)

    def folder_of(self, key: tuple[Any, ...]) -> str:
        """Return the folder of a partition, relative to the folder of the data files."""
        return _folder(self._fields, key)

    @property
    def _fields(self) -> tuple[PartitionField, ...]:
        assert isinstance(self._table, IcebergTable)
        return self._table.fields


class IcebergWriter(_ByFields, RowWriter):
    """Writes rows of an Iceberg table to staged files, one for each partition and snapshot."""


class IcebergChangeWriter(_ByFields, ChangeWriter):
    """Stages, for an Iceberg table, the last change of each key since the previous snapshot."""


def split(rows: pa.Table, fields: tuple[PartitionField, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Divide rows by partition; yield the folder and the rows of each partition."""
    keys = _partitions(rows, fields)
    if keys is None:
        yield "", rows
        return
    indices: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    for key, mine in indices.items():
        yield _folder(fields, key), rows.take(pa.array(mine))


def partition_values(
    folder: str, fields: tuple[PartitionField, ...], schema: pa.Schema
) -> list[Any]:
    """Parse the path of a partition's folder into values for an Iceberg manifest."""
    if not fields:
        return []
    values: list[Any] = []
    for part, field in zip(folder.split("/"), fields, strict=True):
        text = part.partition("=")[2]
        value = unquote(text)
        kind = _result_type(field, schema)
        if text == NULL_PARTITION:
            values.append(None)
        elif kind == pa.string():
            values.append(value)
        else:
            values.append(value == "true" if kind == pa.bool_() else int(value))
    return values


def _partitions(rows: pa.Table, fields: tuple[PartitionField, ...]) -> list[tuple[Any, ...]] | None:
    if not fields:
        return None
    columns = [_transformed(rows[field.source], field.transform) for field in fields]
    return list(zip(*columns, strict=True))


def _transformed(column: pa.ChunkedArray, transform: str) -> list[Any]:
    """Apply an Iceberg transform to a column, and return the value of each row."""
    if transform == "void":
        return [None] * len(column)
    if transform == "identity":
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        return list(column.to_pylist())
    from pyiceberg.transforms import parse_transform

    if pa.types.is_timestamp(column.type) and not transform.startswith("bucket"):
        # All times of an hour are in the same partition. Rounding leaves few distinct values.
        column = pc.floor_temporal(column, unit="hour")
    kind, column = _in_iceberg(column)
    function = parse_transform(transform).transform(kind)
    encoded = column.combine_chunks().dictionary_encode()
    values = [function(value) for value in encoded.dictionary.to_pylist()]
    return [None if i is None else values[i] for i in encoded.indices.to_pylist()]


def _in_iceberg(column: pa.ChunkedArray) -> tuple[IcebergType, pa.ChunkedArray]:
    """Return the Iceberg type of a column, and the column in the form that transforms accept."""
    from pyiceberg import types

    if pa.types.is_timestamp(column.type):
        kind = types.TimestampType() if column.type.tz is None else types.TimestamptzType()
        return kind, column.cast(pa.int64())
    if pa.types.is_date(column.type):
        return types.DateType(), column.cast(pa.int32())
    if pa.types.is_decimal(column.type):
        return types.DecimalType(column.type.precision, column.type.scale), column
    plain: dict[pa.DataType, IcebergType] = {
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.string(): types.StringType(),
        pa.binary(): types.BinaryType(),
    }
    return plain[column.type], column


def _result_type(field: PartitionField, schema: pa.Schema) -> pa.DataType:
    """Return the type of a partition field's values: string, boolean or int64."""
    if field.transform == "identity" or field.transform.startswith("truncate"):
        kind = schema.field(field.source).type
        return kind if kind in (pa.string(), pa.bool_()) else pa.int64()
    return pa.int64()


def _folder(fields: tuple[PartitionField, ...], key: tuple[Any, ...]) -> str:
    parts = []
    for field, value in zip(fields, key, strict=True):
        if value is None:
            text = NULL_PARTITION
        elif isinstance(value, str):
            text = escape(value)
            if text == NULL_PARTITION:  # the text equals the name that means NULL
                text = "%5F" + text[1:]
        else:
            text = str(value).lower()
        parts.append(folder_name(field.name, text))
    return "/".join(parts)
