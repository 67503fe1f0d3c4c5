"""Write records as texts that are equal exactly if the records are: `record_text`.

The texts of two processes are compared. So a text has no addresses, the entries of dicts and sets
have an order, and nothing is left out, as in the `repr` of a large array.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

_PLAIN = {str, int, bool, float, bytes, type(None)}


def record_text(value: Any) -> str:
    """Return a text for a record, which another process makes of an equal record, too.

    An int, a float and a bool of the same value have different texts, since a target may write them
    in different ways.

    Examples:
        >>> record_text({"b": {2, 1}, "a": (1.0, None)})
        "{'a': (1.0, None), 'b': {1, 2}}"
    """
    cls = type(value)
    if cls in _PLAIN:
        return repr(value)
    if cls is list:
        return f"[{', '.join(map(record_text, value))}]"
    if cls is tuple:
        return f"({', '.join(map(record_text, value))})"
    if isinstance(value, dict):
        entries = sorted(f"{record_text(key)}: {record_text(one)}" for key, one in value.items())
        return f"{_prefix(cls, dict)}{{{', '.join(entries)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{_prefix(cls, set)}{{{', '.join(sorted(map(record_text, value)))}}}"
    named = _named_values(value)
    if named is not None:
        return f"{cls.__qualname__}({', '.join(f'{n}={record_text(v)}' for n, v in named)})"
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
        return repr(value)
    if hasattr(value, "tolist"):  # of NumPy
        return f"{cls.__qualname__}({getattr(value, 'dtype', '')} {record_text(value.tolist())})"
    # Its `repr` may leave something out, and what `copy` needs does not.
    return f"{_shown(value)} {_parts(value)}"


def _prefix(cls: type, usual: type) -> str:
    return "" if cls is usual else cls.__qualname__


def _named_values(value: Any) -> list[tuple[str, Any]] | None:
    """Return the names and values of a named tuple or an object with attributes."""
    if isinstance(value, tuple):
        return list(zip(getattr(value, "_fields", map(str, range(len(value)))), value, strict=True))
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    attributes = getattr(value, "__dict__", None)
    return sorted(attributes.items()) if attributes else None


def _parts(value: Any) -> str:
    """Return a text for that of which a copy of an object is made, such as its slots."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of a global
        return reduced
    parts = (list(one) if isinstance(one, Iterator) else one for one in reduced[1:])
    return record_text([one for one in parts if one is not None])


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"
