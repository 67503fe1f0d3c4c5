"""Convert between rows of a declared type and the values that formats have.

JSON and Avro have numbers, texts, lists and dicts, and CSV has texts only. A `Row` also has dates,
times, decimal numbers and bytes, which are texts in JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.types import Row, RowKind, RowTypeInfo, TupleTypeInfo, TypeInformation
from penstock.dataflow.types.composite_types import ArrayTypeInfo, MapTypeInfo

Convert = Callable[[Any], Any]


def row_type(what: str, type_info: object) -> RowTypeInfo:
    """Return the type of rows that a program passes to a format.

    Arguments:
        what: the format, for the error message.
        type_info: the argument.

    Raises:
        GraphError: if it is not the type of a row.
    """
    if not isinstance(type_info, RowTypeInfo):
        raise GraphError(
            f"{what} takes the type of a row, such as Types.ROW_NAMED([...], [...]), "
            f"not {type_info!r}"
        )
    return type_info


def row_reader(type_info: RowTypeInfo, form: str = "json", *, required: bool = False) -> Convert:
    """Return a function that makes a `Row` of a dict.

    Arguments:
        type_info: the type of the row.
        form: "json" or "avro" for values with types, and "csv" for texts.
        required: whether a missing field is an error; otherwise it is None.

    The function raises a `ValueError` if a value does not have the type.
    """
    names = tuple(type_info.get_field_names())
    fields = list(
        zip(names, [value_reader(kind, form) for kind in type_info.get_field_types()], strict=True)
    )

    def read(value: Any) -> Row:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is no {type_info}")
        if required:
            missing = [name for name in names if name not in value]
            if missing:
                raise ValueError(f"field {missing[0]!r} is missing")
        values = []
        for name, convert in fields:
            item = value.get(name)
            if item is not None:
                try:
                    item = convert(item)
                except ValueError as error:
                    raise ValueError(f"field {name!r}: {error}") from None
            values.append(item)
        return Row.of_parts(RowKind.INSERT, names, values)

    return read


def row_writer(type_info: RowTypeInfo, form: str = "json") -> Convert:
    """Return a function that makes a dict of a `Row`, or of a tuple, list or dict.

    The function raises a `ValueError` if a value does not have the type.
    """
    names = type_info.get_field_names()
    writers = [value_writer(kind, form) for kind in type_info.get_field_types()]

    def write(record: Any) -> dict[str, Any]:
        row: Any = type_info.converted(record)
        return {
            name: None if value is None else convert(value)
            for name, value, convert in zip(names, row, writers, strict=True)
        }

    return write


def value_reader(kind: TypeInformation[Any], form: str) -> Convert:
    """Return a function that converts a value of a format, which is not None."""
    if isinstance(kind, RowTypeInfo):
        return row_reader(kind, form)
    if isinstance(kind, TupleTypeInfo):
        parts = [value_reader(part, form) for part in kind.get_field_types()]
        return lambda value: tuple(
            _nullable(convert, item)
            for convert, item in zip(parts, _list(value, kind), strict=True)
        )
    if isinstance(kind, ArrayTypeInfo) and not kind.is_of_bytes:
        item = value_reader(kind.item_type, form)
        return lambda value: [_nullable(item, one) for one in _list(value, kind)]
    if isinstance(kind, MapTypeInfo):
        inner = value_reader(kind.value_type, form)
        return lambda value: {
            key: _nullable(inner, one) for key, one in _mapping(value, kind).items()
        }
    from_text = _FROM_TEXT.get("BYTES" if isinstance(kind, ArrayTypeInfo) else kind.name)
    if from_text is None and form == "csv":
        from_text = _FROM_CSV.get(kind.name)
    if from_text is None:
        return kind.converted

    def read(value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = from_text(value)
            except (ValueError, InvalidOperation):
                raise ValueError(f"{value!r} is no {kind}") from None
        elif kind.name == "BIG_DEC" and isinstance(value, int | float):
            value = Decimal(repr(value))
        return kind.converted(value)

    return read


def value_writer(kind: TypeInformation[Any], form: str) -> Convert:
    """Return a function that makes a value of a format, of a value that is not None."""
    if isinstance(kind, RowTypeInfo):
        return row_writer(kind, form)
    if isinstance(kind, TupleTypeInfo):
        parts = [value_writer(part, form) for part in kind.get_field_types()]
        return lambda value: [
            _nullable(convert, item) for convert, item in zip(parts, value, strict=True)
        ]
    if isinstance(kind, ArrayTypeInfo) and not kind.is_of_bytes:
        item = value_writer(kind.item_type, form)
        return lambda value: [_nullable(item, one) for one in value]
    if isinstance(kind, MapTypeInfo):
        inner = value_writer(kind.value_type, form)
        return lambda value: {key: _nullable(inner, one) for key, one in value.items()}
    if form == "avro":
        return bytes if isinstance(kind, ArrayTypeInfo) else _same
    name = "BYTES" if isinstance(kind, ArrayTypeInfo) else kind.name
    if form == "csv":
        return _TO_CSV.get(name, str)
    return _TO_TEXT.get(name, _same)


def _nullable(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _list(value: Any, kind: TypeInformation[Any]) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is no {kind}")
    if isinstance(kind, TupleTypeInfo) and len(value) != len(kind.get_field_types()):
        raise ValueError(f"{value!r} has {len(value)} items, and {kind} has others")
    return list(value)


def _mapping(value: Any, kind: TypeInformation[Any]) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _timestamp(text: str) -> datetime:
    """Return the time that a text has, without a zone. A time with a zone is converted to UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)


def _boolean(text: str) -> bool:
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return found


#: The types whose values are texts in JSON, and how a text becomes a value.
_FROM_TEXT: dict[str, Convert] = {
    "SQL_DATE": date.fromisoformat,
    "SQL_TIME": lambda text: time.fromisoformat(text.removesuffix("Z")),
    "SQL_TIMESTAMP": _timestamp,
    "BIG_DEC": Decimal,
    "BYTES": lambda text: base64.b64decode(text, validate=True),
}
_FROM_CSV: dict[str, Convert] = {
    **dict.fromkeys(("BYTE", "SHORT", "INT", "LONG", "BIG_INT"), int),
    **dict.fromkeys(("FLOAT", "DOUBLE"), float),
    "BOOLEAN": _boolean,
}
#: How values become texts. As in Flink, a time has the sign of UTC.
_TO_TEXT: dict[str, Convert] = {
    "SQL_DATE": date.isoformat,
    "SQL_TIME": lambda value: f"{value.isoformat()}Z",
    "SQL_TIMESTAMP": lambda value: f"{value.isoformat()}Z",
    "BYTES": lambda value: base64.b64encode(value).decode(),
}
_TO_CSV: dict[str, Convert] = {
    **_TO_TEXT,
    "SQL_TIME": time.isoformat,
    "SQL_TIMESTAMP": lambda value: value.isoformat(" "),
    "BOOLEAN": lambda value: "true" if value else "false",
}
