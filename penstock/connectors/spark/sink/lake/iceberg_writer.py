"""Stage rows for an Iceberg table, in files of one partition each.

A partition is named by its folder, `d_day=19000/p=x`, as for plain files. When the file is
committed, its partition values are read from the folder's name. To Iceberg itself, folders have no
meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.spark.sink.lake.iceberg import IcebergTable, PartitionField
from penstock.connectors.spark.sink.table import NULL_PARTITION, escape, folder_name
from penstock.connectors.spark.sink.writers import ChangeWriter, RowWriter, TableWriter

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

__all__ = ["IcebergChangeWriter", "IcebergWriter", "partition_values", "split"]


class _ByFields(TableWriter):
    """Partitions rows by fields computed from columns; shared by both writers."""

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
    """Stages rows, one file per partition."""


class IcebergChangeWriter(_ByFields, ChangeWriter):
    """Stages the last change of each key since the previous snapshot."""


def split(rows: pa.Table, fields: tuple[PartitionField, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder of each partition, with its rows."""
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
    """Return the values of a partition from its folder, as in Iceberg's manifests."""
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
    """Compute the values of a partition field from those of its column."""
    if transform == "void":
        return [None] * len(column)
    if transform == "identity":
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        return list(column.to_pylist())
    from pyiceberg.transforms import parse_transform

    if pa.types.is_timestamp(column.type) and not transform.startswith("bucket"):
        # Times within an hour are in one partition, so few distinct values remain.
        column = pc.floor_temporal(column, unit="hour")
    kind, column = _in_iceberg(column)
    function = parse_transform(transform).transform(kind)
    encoded = column.combine_chunks().dictionary_encode()
    values = [function(value) for value in encoded.dictionary.to_pylist()]
    return [None if i is None else values[i] for i in encoded.indices.to_pylist()]


def _in_iceberg(column: pa.ChunkedArray) -> tuple[IcebergType, pa.ChunkedArray]:
    """Return the Iceberg type of a column, and its values for Iceberg's transforms."""
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
    """Return the type of a field's values: its column's, or int64 for most transforms."""
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
            if text == NULL_PARTITION:  # a text that equals the name for NULL
                text = "%5F" + text[1:]
        else:
            text = str(value).lower()
        parts.append(folder_name(field.name, text))
    return "/".join(parts)
