"""Pack the plain values that manifests and control messages contain.

Positions, payloads of splits and committables, and states of enumerators come from user code.
msgpack would decode a tuple as a list, and an `IntEnum` as an int. Then the restored value would
differ from the saved value. So `pack_plain` raises an error for such values.

Strings may contain lone surrogates, as the names of files that are not valid UTF-8 do.
"""

from __future__ import annotations

from typing import Any

import msgpack

from penstock.dataflow.errors import JobError

ALLOWED = "use str, int (64 bits), float, bool, None, bytes, list and dict only"
#: The exceptions that `pack_plain` raises for a value that is not plain.
NOT_PLAIN = (TypeError, ValueError, OverflowError, RecursionError)


def pack_plain(value: Any) -> bytes:
    """Return a value as bytes.

    Raises one of `NOT_PLAIN` if `unpack_plain` would return a different value.
    """
    packed: bytes = msgpack.packb(value, strict_types=True, unicode_errors="surrogatepass")
    return packed


def unpack_plain(data: bytes) -> Any:
    """Return the value that `data` contains.

    Raises an exception of msgpack if the bytes are not valid.
    """
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
    except Exception as error:  # the `__repr__` of a user's class may fail
        return f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
