"""Convert values of records to values of Redis, and name the record if that is not possible."""

from __future__ import annotations

import reprlib
from typing import Any

from penstock.dataflow.errors import JobError

#: The largest number of arguments of a command. Scripts have a limit of about 8,000.
LARGEST_COMMAND = 7_000


def as_bytes(value: Any) -> bytes:
    """Return a str, bytes, int or float as Redis keeps it.

    Raises:
        TypeError: if it is anything else.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value).encode()
    raise TypeError(f"{value!r} is a {type(value).__name__}, and not a str, bytes, int or float")


def bad_record(what: str, error: Exception, record: Any) -> JobError:
    """Return the error for a record that cannot be written."""
    return JobError(f"{what}: {type(error).__name__}: {error}", record=reprlib.repr(record))
