"""Values on control connections, packed with msgpack; strict in both directions.

`pack` refuses values that would arrive as other ones: tuples, subclasses of the plain types, and
whole numbers beyond 64 bits. `unpack` and `build` check what arrives: whatever is wrong with it
is a `ProtocolError`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.plain_values import pack_plain, unpack_plain

__all__ = ["build", "build_from_map", "malformed", "pack", "pack_event", "unpack", "unpack_event"]

T = TypeVar("T")


pack = pack_plain


def pack_event(event: dict[str, Any]) -> bytes:
    """Return an event of a job as bytes; nothing in it is kept for later."""
    packed: bytes = msgpack.packb(event, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes, what: str = "frame") -> Any:
    """Return the value in `data`. Raises `ProtocolError` if there is none."""
    with malformed(what):
        return unpack_plain(data)


def unpack_event(data: bytes) -> dict[str, Any]:
    """Return the event of a job in `data`. Raises `ProtocolError` if it is none."""
    event = unpack(data)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ProtocolError(f"malformed event: {data[:40]!r}")
    return event


def build(cls: type[T], values: Any) -> T:
    """Return a dataclass of field values; `ProtocolError` if they are not of the fields' types."""
    hints = _hints(cls)
    if not isinstance(values, list):
        raise ProtocolError(f"malformed {cls.__name__}: it is a {type(values).__name__}")
    if len(values) != len(hints):
        raise ProtocolError(
            f"malformed {cls.__name__}: {len(values)} fields instead of {len(hints)}"
        )
    for (name, hint), value in zip(hints.items(), values, strict=True):
        if not _matches(value, hint):
            raise ProtocolError(f"malformed {cls.__name__}: its {name} is a {type(value).__name__}")
    return cls(*values)


def build_from_map(cls: type[T], values: Mapping[Any, Any]) -> T:
    """Return a dataclass of named values. Raises `ProtocolError` as `build`; others are ignored."""
    missing = [name for name in _hints(cls) if name not in values]
    if missing:
        raise ProtocolError(f"malformed {cls.__name__}: it lacks {', '.join(missing)}")
    return build(cls, [values[name] for name in _hints(cls)])


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn what looking into received values raises into a `ProtocolError`."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ProtocolError(f"malformed {what}: {type(error).__name__}: {error}") from error


_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, in order."""
    found = _HINTS.get(cls)
    if found is None:
        hints = get_type_hints(cls)
        found = _HINTS[cls] = {field.name: hints[field.name] for field in fields(cls)}
    return found


def _matches(value: Any, hint: Any) -> bool:
    """Return whether a value is of a field's type: a plain one, or a list, map or union of such."""
    if hint is Any:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if origin is list:
        return type(value) is list and all(_matches(item, arguments[0]) for item in value)
    if origin is dict:
        return type(value) is dict and all(
            _matches(key, arguments[0]) and _matches(item, arguments[1])
            for key, item in value.items()
        )
    # A whole number is a float, too. A bool is no number.
    return type(value) is hint or (hint is float and type(value) is int)
