"""Pack the values on control connections with msgpack, and check them strictly.

`pack` refuses values that would differ after unpacking: tuples, subclasses of the plain types, and
integers of more than 64 bits. `unpack` and `build` check received values. They raise a
`ProtocolError` if a value is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.plain_values import pack_plain, unpack_plain
from penstock.snapshot.metadata.type_check import require_type

T = TypeVar("T")
#: The maximum length of a frame, in bytes. A larger frame comes from a bug or an attack.
MAX_FRAME = 1 << 30


pack = pack_plain


def pack_event(event: dict[str, Any]) -> bytes:
    """Return an event of a job as bytes.

    Unlike `pack`, it does not check the values strictly, because events are not stored.
    """
    packed: bytes = msgpack.packb(event, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes, what: str = "frame") -> Any:
    """Return the value in `data`. Raise `ProtocolError` if it is malformed."""
    with malformed(what):
        return unpack_plain(data)


def unpack_event(data: bytes) -> dict[str, Any]:
    """Return the event of a job in `data`. Raise `ProtocolError` if it is malformed."""
    event = unpack(data)
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ProtocolError(f"malformed event: {data[:40]!r}")
    return event


def build(cls: type[T], values: Any) -> T:
    """Return an instance of a dataclass with the given values of its fields, in order.

    Raise `ProtocolError` if there are too few or too many values, or if a value does not have
    the type of its field.
    """
    if not isinstance(values, list):
        raise ProtocolError(f"malformed {cls.__name__}: it is a {type(values).__name__}")
    names = _names(cls)
    if len(values) != len(names):
        raise ProtocolError(
            f"malformed {cls.__name__}: {len(values)} fields instead of {len(names)}"
        )
    built = cls(*values)
    with malformed(cls.__name__):
        require_type(built, cls)
    return built


def build_from_map(cls: type[T], values: Mapping[Any, Any]) -> T:
    """Return an instance of a dataclass with the given values of its fields, keyed by name.

    Other keys are ignored. Raise `ProtocolError` if a field is missing, or if a value does not
    have the type of its field.
    """
    names = _names(cls)
    missing = [name for name in names if name not in values]
    if missing:
        raise ProtocolError(f"malformed {cls.__name__}: it lacks {', '.join(missing)}")
    return build(cls, [values[name] for name in names])


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Raise a `ProtocolError` instead of any error that malformed data causes in this block."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ProtocolError(f"malformed {what}: {type(error).__name__}: {error}") from error


def _names(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, in order."""
    return tuple(field.name for field in fields(cls))
