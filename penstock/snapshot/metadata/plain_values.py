"""Pack the plain values that manifests and control messages contain.

Positions, payloads of splits and of committables, and states of enumerators are user values. A
tuple would be decoded as a list, and an `IntEnum` as an int: not the position that was saved. Such
values are refused when they are sent or saved.

Strings may contain lone surrogates, as file names do that are not UTF-8.
"""

from __future__ import annotations

from typing import Any

import msgpack

from penstock.dataflow.errors import JobError

__all__ = ["ALLOWED", "NOT_PLAIN", "pack_plain", "require_plain", "unpack_plain"]

ALLOWED = "use str, int (64 bits), float, bool, None, bytes, list and dict only"
#: The exceptions that `pack_plain` raises.
NOT_PLAIN = (TypeError, ValueError, OverflowError, RecursionError)


def pack_plain(value: Any) -> bytes:
    """Return a value as bytes; raise one of `NOT_PLAIN` if it would be decoded differently."""
    packed: bytes = msgpack.packb(value, strict_types=True, unicode_errors="surrogatepass")
    return packed


def unpack_plain(data: bytes) -> Any:
    """Return the value in `data`; raise an exception of msgpack if there is none."""
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")


def require_plain(what: str, value: Any, operator: str) -> None:
    """Raise a `JobError` that names the operator if a value is not plain."""
    try:
        pack_plain(value)
    except NOT_PLAIN as cause:
        message = f"the {what} does not fit into a snapshot's manifest ({cause}): {ALLOWED}"
        raise JobError(message, operator=operator, record=_shown(value)) from cause


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except Exception as error:  # a class's own __repr__ may fail
        return f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
