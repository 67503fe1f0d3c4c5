"""Shows values of state as JSON text."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time, timedelta
from typing import Any


def as_json(value: Any) -> str:
    """Return a value as JSON text; docs/guides/spark.md has a table of the conversions."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON has."""
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
    if isinstance(value, range) or not hasattr(value, "__iter__"):
        return str(value)  # Examples are Decimal, Fraction, complex, UUID and time zones.
    return [_plain(item) for item in value]
