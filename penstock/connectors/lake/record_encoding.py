"""Turn records into Arrow columns, and check the type of every value.

A record may be a dict, a dataclass, a named tuple or a PySpark `Row`. Its field names must then be
exactly the column names. A record may also be a plain tuple or list with its values in the order
of the columns. Each value must have the Python type of its column. pyarrow alone would also accept
bytes for text, `True` for 1, and a `datetime` without a zone for a TIMESTAMP. An error names the
record and the column. The table in `docs/guides/spark.md` lists the types. This module uses neither
Spark nor files.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, chain, islice
from operator import attrgetter, itemgetter
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataflow.errors import JobError

#: The metadata key for the Spark type of an interval field. Spark uses this key in ORC files.
CATALYST_TYPE = "spark.sql.catalyst.type"

#: The number of rows that are converted to columns at a time. Larger slices are slower.
_SLICE = 8192
_UTC = datetime.UTC
#: The smallest step of an interval type, keyed by the last unit in the name of the type.
_UNITS: dict[str, Any] = {
    "day": datetime.timedelta(days=1),
    "hour": datetime.timedelta(hours=1),
    "minute": datetime.timedelta(minutes=1),
    "year": 12,
}
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


class _MisfitError(Exception):
    """Raised when a value does not fit its column."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason


class RowEncoder:
    """Turns records into Arrow record batches of one schema.

    Arguments:
        schema: the names, types and nullability of the columns, in the order of plain tuples. The
            metadata of a field may have the keys `varchar` or `char` (the length of a text, in
            characters), `since` (the first valid date) and `CATALYST_TYPE` (the Spark type of an
            interval).
        subject: the destination of the records, for error messages.
    """

    def __init__(self, schema: pa.Schema, subject: str) -> None:
        self.schema = schema
        self._fields = list(schema)
        self._subject = subject

    def encode(self, records: Sequence[Any]) -> pa.Table:
        """Convert records to an Arrow table.

        Raises:
            JobError: if a record does not fit the schema. The error names the record and the
                column.
        """
        try:
            slices = [
                pa.RecordBatch.from_arrays(self._arrays(part), schema=self.schema)
                for part in _slices(records)
            ]
        except _MisfitError as error:
            raise self._blame(records, error) from None
        return pa.Table.from_batches(slices, self.schema)

    def _arrays(self, records: Sequence[Any]) -> list[pa.Array]:
        columns = _columns(records, [field.name for field in self._fields], "")
        return [
            _array(values, field, field.name)
            for values, field in zip(columns, self._fields, strict=True)
        ]

    def _blame(self, records: Sequence[Any], error: _MisfitError) -> JobError:
        """Find the first record that does not fit the schema, and return an error about it."""
        culprit: Any = None
        for record in records:
            try:
                self._arrays([record])
            except _MisfitError as own:
                error, culprit = own, record
                break
        text = repr(culprit)
        where = f"column {error.column!r}: " if error.column else ""
        return JobError(
            f"a record does not fit {self._subject}: {where}{error.reason}",
            record=text if len(text) <= 500 else f"{text[:500]}… ({len(text)} characters)",
        )


def _slices(records: Sequence[Any]) -> Iterable[Sequence[Any]]:
    if len(records) <= _SLICE:
        return [records] if records else []
    return (records[i : i + _SLICE] for i in range(0, len(records), _SLICE))


# ---- rows to columns


def _columns(records: Sequence[Any], names: list[str], path: str) -> list[Sequence[Any]]:
    """Return one sequence of values for each column, in the order of `names`."""
    classes = set(map(type, records))
    if len(classes) != 1:
        rows: list[Any] = [_row(record, names, path) for record in records]
        return list(zip(*rows, strict=True)) or [() for _ in names]
    (cls,) = classes
    if cls is tuple or cls is list:
        wrong = set(map(len, records)) - {len(names)}
        if wrong:
            raise _MisfitError(
                path, f"it has {wrong.pop()} values, and there are {len(names)} columns: {names}"
            )
        return _by_position(records, range(len(names)))
    if issubclass(cls, dict):
        wrong = set(map(len, records)) - {len(names)}
        try:
            columns: list[Sequence[Any]] = [list(map(itemgetter(name), records)) for name in names]
        except KeyError as error:
            raise _MisfitError(_join(path, str(error.args[0])), "it is missing") from None
        if wrong:
            extra = next(set(record) - set(names) for record in records if len(record) > len(names))
            raise _MisfitError(path, f"there is no column {min(map(str, extra))!r}")
        return columns
    own = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    if dataclasses.is_dataclass(cls):
        own = tuple(field.name for field in dataclasses.fields(cls))
    if own is None:
        # Each instance of a PySpark Row has its own field names.
        return list(zip(*[_row(record, names, path) for record in records], strict=True))
    _compare(own, names, path)
    if issubclass(cls, tuple):
        return _by_position(records, map(own.index, names))
    return [list(map(attrgetter(name), records)) for name in names]


def _by_position(records: Sequence[Any], positions: Iterable[int]) -> list[Sequence[Any]]:
    # `zip(*records)` would create one iterator for each record, which slows garbage collection.
    return [list(map(itemgetter(position), records)) for position in positions]


def _row(record: Any, names: list[str], path: str) -> Sequence[Any]:
    """Return the values of one record, in the order of `names`."""
    fields = getattr(record, "__fields__", None)
    if isinstance(record, tuple) and fields is not None:
        _compare(fields, names, path)
        return [record[fields.index(name)] for name in names]
    plain = type(record) in (tuple, list)
    named = isinstance(record, dict) or dataclasses.is_dataclass(type(record))
    if not plain and not named and not hasattr(type(record), "_fields"):
        raise _MisfitError(
            path,
            f"it is {_article(record)}, not a dict, tuple, dataclass or named tuple",
        )
    return [column[0] for column in _columns([record], names, path)]


def _compare(own: Sequence[str], names: list[str], path: str) -> None:
    for name in names:
        if name not in own:
            raise _MisfitError(_join(path, name), "it is missing")
    for name in own:
        if name not in names:
            raise _MisfitError(path, f"there is no column {name!r}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# ---- columns to arrays


def _array(values: Sequence[Any], field: pa.Field, path: str) -> pa.Array:
    """Convert the values of a column to an Arrow array of the field's type."""
    if not field.nullable and type(None) in set(map(type, values)):
        raise _MisfitError(path, "it is None, and the column is NOT NULL")
    kind = field.type
    if pa.types.is_struct(kind):
        return _structs(values, kind, path)
    if pa.types.is_map(kind):
        return _maps(values, kind, path)
    if pa.types.is_list(kind):
        return _lists(values, kind, path)
    values = _checked(values, field, path)
    try:
        array = pa.array(values, type=kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise _MisfitError(path, _reason(error, kind)) from None
    if kind == pa.float32() and pc.any(pc.is_inf(array)).as_py():
        for value, infinite in zip(values, pc.is_inf(array).to_pylist(), strict=True):
            if infinite and not math.isinf(value):
                raise _MisfitError(path, f"{value!r} is too large for a float of 32 bits")
    return array


def _checked(values: Sequence[Any], field: pa.Field, path: str) -> Sequence[Any]:
    """Check the values of a column, and return them in a form that pyarrow can convert.

    Raises:
        _MisfitError: if a value has the wrong Python type or is not valid for the column.
    """
    kind = field.type
    allowed = _allowed(kind)
    strange = set(map(type, values)) - allowed
    if strange and all(cls.__module__ == "numpy" for cls in strange):
        values = [v.item() if type(v).__module__ == "numpy" else v for v in values]
        strange = set(map(type, values)) - allowed
    if strange:
        cls = min(strange, key=str)
        wanted = " or ".join(sorted(c.__name__ for c in allowed if c is not type(None)))
        raise _MisfitError(path, f"its type is {cls.__name__}, and {kind} takes {wanted}")
    if pa.types.is_timestamp(kind):
        values = _times(values, kind, path)
    metadata = field.metadata or {}
    if b"since" in metadata:
        since = datetime.date.fromisoformat(metadata[b"since"].decode())
        for value in values:
            if value is not None and value < since:
                raise _MisfitError(path, f"{value} is before {since}, which Spark misreads in ORC")
    if CATALYST_TYPE.encode() in metadata:
        interval = metadata[CATALYST_TYPE.encode()].decode()
        unit = _UNITS.get(interval.split()[-1])
        for value in values if unit is not None else ():
            if value is not None and value % unit:
                raise _MisfitError(path, f"{value!r} does not fit {interval} without loss")
    for key in (b"varchar", b"char"):
        if key in metadata:
            limit = int(metadata[key])
            longest = max((len(v) for v in values if v is not None), default=0)
            if longest > limit:
                name = key.decode()
                raise _MisfitError(path, f"{longest} characters are too many for {name}({limit})")
            if key == b"char":
                # CHAR values are padded with blanks, as Spark does when it writes them.
                values = [None if v is None else v.ljust(limit) for v in values]
    return values


def _times(values: Sequence[Any], kind: pa.DataType, path: str) -> Sequence[Any]:
    """Check the time zones of datetimes, and return them so that pyarrow converts them exactly.

    Raises:
        _MisfitError: if a value has a time zone and the column has none, or if a value has no time
            zone and the column requires one.
    """
    # Distinct zones are found by identity, since there are few, and a comparison is slow.
    zones = {id(v.tzinfo): v.tzinfo for v in values if v is not None}.values()
    if {zone is not None for zone in zones} - {kind.tz is not None}:
        raise _MisfitError(
            path,
            "a TIMESTAMP is an instant and takes a datetime with a time zone"
            if kind.tz is not None
            else "a TIMESTAMP_NTZ takes a datetime without a time zone",
        )
    if all(zone is None or zone is _UTC or isinstance(zone, ZoneInfo) for zone in zones):
        return values
    # pyarrow ignores the microseconds of a UTC offset, so such times are converted to UTC here.
    try:
        return [
            v if v is None or not v.utcoffset().microseconds else v.astimezone(_UTC) for v in values
        ]
    except OverflowError:
        raise _MisfitError(path, "in UTC it is not in the years 1 to 9999") from None


def _allowed(kind: pa.DataType) -> frozenset[type]:
    nothing = type(None)
    if kind in _INTEGERS:
        return frozenset({int, nothing})
    if pa.types.is_floating(kind):
        return frozenset({float, int, nothing})
    if pa.types.is_decimal(kind):
        return frozenset({Decimal, int, nothing})
    if pa.types.is_timestamp(kind):
        return frozenset({datetime.datetime, nothing})
    if kind == pa.binary():
        return frozenset({bytes, bytearray, nothing})
    exact: dict[pa.DataType, type] = {
        pa.string(): str,
        pa.bool_(): bool,
        pa.date32(): datetime.date,
        pa.duration("us"): datetime.timedelta,
    }
    return frozenset({exact[kind], nothing} if kind in exact else {nothing})


def _reason(error: Exception, kind: pa.DataType) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "it holds a lone surrogate, which is no text in UTF-8"
    if pa.types.is_decimal(kind):
        return f"it does not fit decimal({kind.precision},{kind.scale}) without loss"
    return f"it does not fit {kind}: {error}"


def _require(values: Sequence[Any], classes: tuple[type, ...], kind: str, path: str) -> None:
    for cls in set(map(type, values)) - {type(None)}:
        if not issubclass(cls, classes):
            wanted = classes[0].__name__
            raise _MisfitError(path, f"its type is {cls.__name__}, and {kind} takes a {wanted}")


def _lists(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    _require(values, (list, tuple), "an array", path)
    items = list(chain.from_iterable(v for v in values if v is not None))
    return pa.ListArray.from_arrays(
        _offsets(values), _array(items, kind.value_field, f"{path}[]"), type=kind
    )


def _maps(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    nested = pa.types.is_nested(kind.key_type)
    # The Python values of structs, lists and maps are not hashable, so they cannot be dict keys.
    _require(values, (list, tuple, dict) if nested else (dict,), "a map", path)
    present = [v for v in values if v is not None]
    if nested:
        pairs = list(chain.from_iterable(v.items() if isinstance(v, dict) else v for v in present))
        if any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in pairs):
            raise _MisfitError(path, "a map with such keys takes a list of pairs (key, value)")
        own_keys, own_items = [key for key, _ in pairs], [item for _, item in pairs]
    else:
        own_keys = list(chain.from_iterable(present))
        own_items = list(chain.from_iterable(v.values() for v in present))
    keys = _array(own_keys, kind.key_field, f"{path}.key")
    # For these types, two different Python keys may become equal when they are stored.
    if nested or pa.types.is_floating(kind.key_type) or pa.types.is_timestamp(kind.key_type):
        _require_distinct(keys, map(len, present), path)
    items = _array(own_items, kind.item_field, f"{path}.value")
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind)


def _require_distinct(keys: pa.Array, counts: Iterable[int], path: str) -> None:
    """Check that the stored keys of each map differ.

    Raises:
        _MisfitError: if two keys of the same map are equal after they are stored.
    """
    shown = iter(map(repr, keys.to_pylist()))  # All NaN have the same `repr`, so they are equal.
    for count in counts:
        mine = list(islice(shown, count))
        if len(set(mine)) != len(mine):
            twice = next(key for key in mine if mine.count(key) > 1)
            raise _MisfitError(f"{path}.key", f"two keys of one map are both stored as {twice}")


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offsets of an Arrow list or map array.

    An offset is the position of a value's first item among all items. It is None for NULL. The
    last offset is the total number of items.
    """
    ends = list(accumulate((len(v) if v is not None else 0 for v in values), initial=0))
    return pa.array(
        [None if v is None else begin for v, begin in zip(values, ends, strict=False)] + ends[-1:],
        pa.int32(),
    )


def _structs(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in fields]
    present = [v for v in values if v is not None]
    columns = _columns(present, names, path) if present else [() for _ in names]
    arrays = [
        _array(column, field, _join(path, field.name))
        for column, field in zip(columns, fields, strict=True)
    ]
    if len(present) == len(values):
        return pa.StructArray.from_arrays(arrays, fields=fields)
    if not present:
        return pa.nulls(len(values), kind)
    # A null struct needs some value in each field. Nothing reads it, so the first row's is used.
    count = iter(range(len(present)))
    indices = pa.array([0 if v is None else next(count) for v in values], pa.int32())
    spread = [array.take(indices) for array in arrays]
    mask = pa.array([v is None for v in values])
    return pa.StructArray.from_arrays(spread, fields=fields, mask=mask)
