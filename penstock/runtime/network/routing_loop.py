"""The loop that sends each record to the output buffer of its key.

It runs once per record, so `penstock.runtime.codegen` compiles it again with the user's key
selector in the place of the call. That is why the selector is the first parameter, and why
`append` is looked up at each list: Python then appends without a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["route_records"]


def route_records(
    key_of: Callable[[Any], Any], iterator: Iterator[Any], pending: Mapping[Any, Any]
) -> None:
    """Append each record to the `records` of what is pending for its key."""
    for record in iterator:
        pending[key_of(record)].records.append(record)
