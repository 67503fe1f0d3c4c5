"""Turn Arrow columns into Python records.

Each column is converted to a list as a whole, at a cost of tens of nanoseconds per value. Then
`zip` or `map` makes records from the lists. `spark_types.py` lists the Python type of each column
type. For numbers, strings and bytes, Arrow's `to_pylist` is the fastest method. For dates and
times, `to_pylist` calls Python code for each value, and NumPy is ten times as fast.
"""

from __future__ import annotations

import datetime
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from penstock.dataflow.errors import GraphError, JobError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY_US = 24 * 60 * 60 * 1_000_000
#: The first and the last day of Python's dates (years 1 to 9999), in days since 1970-01-01.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def to_python(array: pa.Array, arrow_type: pa.DataType, column: str) -> list[Any]:
    """Return the values of an Arrow column as a list of Python values.

    Arguments:
        array: the column as the file stores it. In a file, a timestamp may lack its time zone, and
            an interval is a plain number.
        arrow_type: the type of the column in the table.
        column: the name of the column, for error messages.

    Raises:
        JobError: if a date or timestamp is outside the years 1 to 9999.
    """
    if at.is_date(arrow_type) or at.is_timestamp(arrow_type):
        return _times(array, arrow_type, column)
    if at.is_duration(arrow_type):
        return _durations(array).tolist()  # type: ignore[no-any-return]
    if at.is_map(arrow_type):
        return _maps(array, arrow_type, column)
    if at.is_list(arrow_type):
        return _lists(array, arrow_type, column)
    if at.is_struct(arrow_type):
        return _structs(array, arrow_type, column)
    return array.to_pylist()  # type: ignore[no-any-return]


def _durations(array: pa.Array) -> Any:
    """Return a column of microseconds as NumPy durations.

    The method `tolist` of the result returns `timedelta` values, and None for NULL.
    """
    return array.cast(pa.int64()).cast(pa.duration("us")).to_numpy(zero_copy_only=False)


def _times(array: pa.Array, arrow_type: pa.DataType, column: str) -> list[Any]:
    if at.is_date(arrow_type):
        unit, values = 1, array.cast(pa.int32())
    else:
        array = array.cast(pa.timestamp("us", array.type.tz))
        unit, values = _DAY_US, array.cast(pa.int64())
    ends = pc.min_max(values)
    # For dates outside this range, NumPy returns plain numbers instead of dates, without an error.
    if len(values) > values.null_count and not (
        _FIRST_DAY * unit <= ends["min"].as_py() and ends["max"].as_py() < (_LAST_DAY + 1) * unit
    ):
        raise JobError(
            f"column {column} holds a date before the year 1 or after 9999, which Python's "
            f"datetime cannot represent: filter it out, or cast the column to a string in Spark"
        )
    if not at.is_date(arrow_type) and arrow_type.tz is not None:
        since = _durations(values).tolist()
        if not values.null_count:
            return list(map(_EPOCH.__add__, since))
        return [None if delta is None else _EPOCH + delta for delta in since]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _structs(array: pa.StructArray, arrow_type: pa.DataType, column: str) -> list[Any]:
    names = [arrow_type.field(index).name for index in range(arrow_type.num_fields)]
    columns = [
        to_python(values, arrow_type.field(index).type, f"{column}.{names[index]}")
        for index, values in enumerate(array.flatten())
    ]
    if columns:
        structs: list[Any] = [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    else:
        structs = [{} for _ in range(len(array))]
    return _with_nulls(structs, array)


def _lists(array: pa.ListArray, arrow_type: pa.DataType, column: str) -> list[Any]:
    offsets = array.offsets.to_pylist()
    inner = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    values = to_python(inner, arrow_type.value_type, f"{column}[]")
    return _with_nulls(_cut(values, offsets), array)


def _maps(array: pa.MapArray, arrow_type: pa.DataType, column: str) -> list[Any]:
    offsets = array.offsets.to_pylist()
    span = offsets[0], offsets[-1] - offsets[0]
    keys = to_python(array.keys.slice(*span), arrow_type.key_type, f"{column}{{key}}")
    items = to_python(array.items.slice(*span), arrow_type.item_type, f"{column}{{value}}")
    pairs = _cut(list(zip(keys, items, strict=True)), offsets)
    # The Python values of structs, lists and maps are not hashable, so they cannot be dict keys.
    maps = pairs if at.is_nested(arrow_type.key_type) else list(map(dict, pairs))
    return _with_nulls(maps, array)


def _cut(values: list[Any], offsets: list[int]) -> list[Any]:
    first = offsets[0]
    return [values[start - first : end - first] for start, end in pairwise(offsets)]


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if not array.null_count:
        return values
    return [
        value if valid else None
        for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


def record_maker(as_: str | type, names: Sequence[str]) -> Callable[[list[list[Any]]], list[Any]]:
    """Return a function that makes records from a list of columns.

    Arguments:
        as_: the kind of record: "tuple", "dict", or a dataclass or named tuple whose fields are
            `names`.
        names: the names of the columns, in order.
    """
    if as_ == "tuple":
        return lambda columns: list(zip(*columns, strict=True))
    if as_ == "dict":
        return lambda columns: [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    assert isinstance(as_, type), as_
    cls = as_
    if issubclass(cls, tuple):
        new = tuple.__new__  # It does the same as `_make` of a named tuple, but is faster.
        return lambda columns: [new(cls, row) for row in zip(*columns, strict=True)]
    return lambda columns: list(map(cls, *columns))


@lru_cache
def row_class(names: tuple[str, ...]) -> type:
    """Return the named tuple class for rows with these columns.

    The same names always give the same class.

    Raises:
        GraphError: if a column name cannot be the name of an attribute in Python.
    """
    # Penstock identifies record classes by name, so classes with other columns need other names.
    # The module does not exist, so the class is serialized together with the job's code.
    name = f"Row_{crc32(repr(names).encode()):08x}"
    try:
        return namedtuple(name, names, module="penstock_rows")
    except ValueError as error:
        raise GraphError(
            f"a column can't be an attribute of a row: {error}; rename it in Spark, or read the "
            f"table with as_='dict' or as_='tuple'"
        ) from None


def class_fields(cls: type) -> list[str]:
    """Return the names of the fields that the constructor of a record class takes.

    Raises:
        GraphError: if the class is neither a dataclass nor a named tuple, or if a field must be
            passed by keyword.
    """
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return list(cls._fields)
    if not is_dataclass(cls):
        raise GraphError(
            f"as_ is 'dict', 'tuple', 'row', 'arrow', a dataclass or a named tuple, not {cls!r}"
        )
    made_from = [field for field in fields(cls) if field.init]
    if any(field.kw_only for field in made_from):
        raise GraphError(
            f"{cls.__name__} wants its fields by keyword (kw_only), and rows are given in order: "
            f"read the table as a dataclass without kw_only, or as dicts"
        )
    return [field.name for field in made_from]
