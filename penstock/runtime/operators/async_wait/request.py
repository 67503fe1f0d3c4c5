"""A request in flight: the record that waits for its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Request:
    """One record, from its arrival until its results are emitted.

    Arguments:
        record: the record.
        timestamp: the event time of the record, in milliseconds since the epoch.
        mutable: whether the record can be changed, so that the function gets a copy.
    """

    __slots__ = ("_cancel", "attempts", "mutable", "record", "results", "segment", "timestamp")

    def __init__(self, record: Any, timestamp: int, mutable: bool) -> None:
        self.record, self.timestamp, self.mutable = record, timestamp, mutable
        #: The number of times that the function was called.
        self.attempts = 0
        #: The records to emit; None until the request has ended.
        self.results: list[Any] | None = None
        #: The number of held elements before the request in an unordered queue.
        self.segment = 0
        self._cancel: Callable[[], None] | None = None

    def begin(self) -> int:
        """Begin the next attempt, and return its number."""
        self.attempts += 1
        return self.attempts

    def cancels_with(self, cancel: Callable[[], None]) -> None:
        """Set the function that cancels the current attempt."""
        self._cancel = cancel

    def attempt_ended(self) -> None:
        """Note that the current attempt can no longer be cancelled."""
        self._cancel = None

    def end(self, results: list[Any]) -> None:
        """Set the records to emit."""
        self.results = results
        self._cancel = None

    def emitted(self) -> None:
        """Drop the record and the results, which are no longer needed."""
        self.record, self.results = None, []

    def cancel(self) -> None:
        """Cancel the current attempt, if there is one."""
        if self._cancel is not None:
            cancel, self._cancel = self._cancel, None
            cancel()

    def place_in(self, segment: int) -> None:
        """Set the number of held elements before the request."""
        self.segment = segment
