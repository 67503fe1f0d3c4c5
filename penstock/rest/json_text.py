"""Write values as JSON, which has no infinite numbers and no bytes."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any) -> str:
    """Return a value as JSON. Numbers that JSON does not have become null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_other)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), default=_other)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _other(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
