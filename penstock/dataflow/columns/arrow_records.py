"""Convert records to Arrow batches, and Arrow batches to records.

A record with named fields is a row: a dict, a `Row` with names, a named tuple or a dataclass. The
rows of an Arrow batch are dicts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time
from itertools import chain
from typing import TYPE_CHECKING

from penstock.dataflow.errors import JobError
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types import Row

if TYPE_CHECKING:
    import pyarrow as pa

#: Words in the error of pyarrow for a cast that would change a value.
_LOST = re.compile("truncated|lose data|data loss")


def arrow_of(
    records: Sequence[UserValue],
    schema: pa.Schema | None = None,
) -> pa.RecordBatch:
    """Return the records as an Arrow batch.

    A field that a record lacks becomes null. Without a schema, the types are inferred from the
    values.

    Arguments:
        records: the rows. With a schema, they may also be plain tuples and lists of its width.
        schema: the schema of the batch, or None.

    Raises:
        JobError: if a record has no names, has a field that the schema lacks, or does not fit.
    """
    import pyarrow as pa

    names = None if schema is None else list(schema.names)
    rows = fields_of(records, names)
    found = dict.fromkeys(chain.from_iterable(rows))
    if names is None:
        if not found and rows:
            raise JobError("a record without fields cannot become a row", record=_text(records[0]))
        names = list(found)
    elif extra := [name for name in found if name not in names]:
        culprit = next(row for row in rows if extra[0] in row)
        raise JobError(
            f"a record has the field {extra[0]!r}, which is no column of the schema: "
            f"{', '.join(map(str, names))}",
            record=_text(culprit),
        )
    arrays = []
    for name in names:
        if type(name) is not str:
            raise JobError(f"the name of a column is a str, not {name!r}")
        kind = None if schema is None else schema.field(name).type
        values = [row.get(name) for row in rows]
        try:
            arrays.append(array_of_values(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, kind, values, records, error) from None
    if schema is None:
        return pa.RecordBatch.from_arrays(arrays, names)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fields_of(
    records: Sequence[UserValue], names: list[str] | None = None
) -> list[dict[str, UserValue]]:
    """Return the fields of each record by name.

    Arguments:
        records: the rows. With `names`, they may also be plain tuples and lists.
        names: the names of the items of plain tuples and lists.

    Raises:
        JobError: if a record has no names.
    """
    kinds = set(map(type, records))
    if kinds <= {dict}:
        return list(records)
    converters = {kind: _converter(kind, names) for kind in kinds}
    out = []
    for record in records:
        try:
            out.append(converters[type(record)](record))
        except (TypeError, ValueError) as error:
            raise JobError(f"a record cannot become a row: {error}", record=_text(record)) from None
    return out


def fit_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, in its order and with its types.

    Raises:
        JobError: if the batch has other columns, or a column cannot be cast.
    """
    import pyarrow as pa

    if batch.schema.equals(schema, check_metadata=False):
        return batch
    have, want = batch.schema.names, schema.names
    if sorted(have) != sorted(want):
        raise JobError(f"a batch has the columns {have}, and the schema has the columns {want}")
    arrays = []
    for field in schema:
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise JobError(f"column {field.name!r} does not fit the schema: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, UserValue]]:
    """Return the rows of an Arrow batch as new dicts of Python values.

    Times in nanoseconds are truncated to microseconds, because Python's classes have no
    nanoseconds.
    """
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def one_row(batch: pa.RecordBatch, index: int) -> dict[str, UserValue]:
    """Return one row of an Arrow batch."""
    return rows_of(batch.slice(index, 1))[0]


def python_values(column: pa.Array) -> list[UserValue]:
    """Return the values of a column as Python objects; None for null."""
    import pyarrow as pa

    kind, types = column.type, pa.types
    if not column.null_count and (types.is_integer(kind) or types.is_float64(kind)):
        plain: list[UserValue] = column.to_numpy().tolist()
        return plain
    if not column.null_count and types.is_string(kind):
        texts: list[UserValue] = column.to_numpy(zero_copy_only=False).tolist()
        return texts
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    elif types.is_duration(kind) and kind.unit == "ns":
        column = column.cast(pa.duration("us"), safe=False)
    elif types.is_time64(kind) and kind.unit == "ns":
        column = column.cast(pa.time64("us"), safe=False)
    values: list[UserValue] = column.to_pylist()
    return values


def array_of_values(values: list[UserValue], kind: pa.DataType | None) -> pa.Array:
    """Return the values as an Arrow array of a type; None to find it.

    `pyarrow.array` turns 1.5 into the integer 1, and cuts times to their unit. A value that would
    change is refused instead, as `fit_schema` does.

    Raises:
        ValueError: if a value would change. (The errors of pyarrow are also raised.)
    """
    import pyarrow as pa

    array = pa.array(values, kind)
    if kind is None or set(map(type, values)) <= {int, str, type(None)}:
        return array
    types = pa.types
    if types.is_floating(kind) or types.is_string(kind) or types.is_boolean(kind):
        return array
    for value in values:
        if (cut := _cut(value, kind)) is not None:
            raise ValueError(f"{cut!r} would be changed or lost")
    try:
        pa.array(values).cast(kind)
    except pa.ArrowInvalid as error:
        if not _LOST.search(str(error)):
            return array
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return array  # of values without a type in common, which fit this one
    return array


def _converter(kind: type, names: list[str] | None) -> Callable[[UserValue], dict[str, UserValue]]:
    """Return a function that returns the fields of a record of one type by name."""
    if issubclass(kind, dict):
        return dict
    if issubclass(kind, Row):
        return _fields_of_row
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda record: dict(zip(kind._fields, record, strict=True))
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
        return lambda record: {name: getattr(record, name) for name in fields}
    if issubclass(kind, tuple | list) and names is not None:
        return lambda record: _by_position(record, names)
    return _refuse


def _fields_of_row(record: Row) -> dict[str, UserValue]:
    if record.get_field_names() is None:
        raise TypeError("a Row without field names: name its fields, or emit a dict")
    return record.as_dict()


def _by_position(record: Sequence[UserValue], names: list[str]) -> dict[str, UserValue]:
    if len(record) != len(names):
        raise ValueError(f"it has {len(record)} items, and the schema has {len(names)} columns")
    return dict(zip(names, record, strict=True))


def _refuse(record: object) -> dict[str, UserValue]:
    kind = type(record).__name__
    hint = "; with a schema, tuples work, too" if isinstance(record, tuple | list) else ""
    raise TypeError(
        f"columns need names, and a {kind} has none: emit a dict, a Row with names, a named tuple "
        f"or a dataclass{hint}"
    )


def _cut(value: object, kind: pa.DataType) -> object:
    """Return the part of a value that a type cannot hold, and that pyarrow cuts without an error.

    Return None if nothing is cut.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _cut(value, kind.value_type)
    if isinstance(value, float):
        cut = types.is_temporal(kind) or (types.is_integer(kind) and not value.is_integer())
        return value if cut else None
    if isinstance(value, datetime) and types.is_date(kind):
        return None if value.time() == time() else value
    parts: Iterable[tuple[object, pa.DataType]] = ()
    if types.is_struct(kind) and isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        if extra := {name: value[name] for name in value if name not in fields}:
            return extra
        parts = [(value[name], fields[name]) for name in value]
    elif types.is_map(kind) and isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else value
        kinds = (kind.key_type, kind.item_type)
        parts = chain.from_iterable(zip(pair, kinds, strict=True) for pair in pairs)
    elif hasattr(kind, "value_type") and isinstance(value, list | tuple):
        parts = ((item, kind.value_type) for item in value)
    return next((cut for item, of in parts if (cut := _cut(item, of)) is not None), None)


def _misfit(
    name: str,
    kind: pa.DataType | None,
    values: Iterable[object],
    records: Sequence[object],
    error: Exception,
) -> JobError:
    """Return an error for the first value that does not fit the type of its column."""
    import pyarrow as pa

    record: object = None
    first = None
    for value, candidate in zip(values, records, strict=True):
        first = value if first is None else first
        try:
            array_of_values([first, value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as own:
            error, record = own, candidate
            break
    target = "one type" if kind is None else str(kind)
    hint = "; give a schema with the types of all columns" if kind is None else ""
    return JobError(
        f"the values of column {name!r} do not fit {target}: {error}{hint}",
        record=None if record is None else _text(record),
    )


def _text(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 500 else f"{text[:500]}… ({len(text)} characters)"
