"""Shows values of state as JSON text, and reads keys from JSON text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from penstock.dataflow.errors import GraphError


def as_json(value: Any) -> str:
    """Return a value as JSON text; docs/guides/spark.md has a table of the conversions."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON has."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        # All keys of a JSON object are text, so the keys 1 and "1" would become the same key.
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        # A set has no order. The items are sorted so that equal sets give equal JSON.
        return sorted(map(_plain, value), key=repr)
    if hasattr(value, "item"):
        return _plain(value.item())  # The value is a NumPy scalar.
    if hasattr(value, "_fields"):
        return {name: _plain(item) for name, item in zip(value._fields, value, strict=False)}
    if isinstance(value, range) or not hasattr(value, "__iter__"):
        return str(value)  # Examples are Decimal, Fraction, complex, UUID and time zones.
    return [_plain(item) for item in value]


def json_value(value: Any) -> Any:
    """Return a value in the types that JSON has."""
    return _plain(value)


def keys_of(text: str) -> Iterator[Any]:
    """Yield the keys that a text may mean, the most likely one first.

    The text is JSON: a number, a text in quotes, or a list for a tuple. A text may also stand for a
    date, a time, a UUID, a decimal number or bytes, as `as_json` shows them.

    Raises:
        GraphError: if the text is no JSON.
    """
    try:
        value = json.loads(text)
    except ValueError:
        raise GraphError(f"the key {text!r} is no JSON; a text needs quotes: '\"a\"'") from None
    yield _tuple(value)
    if isinstance(value, str):
        for read in (datetime.fromisoformat, date.fromisoformat, time.fromisoformat, UUID, Decimal):
            with suppress(ValueError, ArithmeticError):
                yield read(value)
        with suppress(ValueError):
            yield base64.b64decode(value, validate=True)


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
