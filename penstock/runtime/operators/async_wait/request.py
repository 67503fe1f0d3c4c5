"""A request in flight, and a call of the function for one or more requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: A time of arrival for a request that waits no longer for others.
_LONG_AGO = -(1 << 62)


class Request:
    """One record, from its arrival until its results are emitted.

    Arguments:
        record: the record.
        timestamp: the event time of the record, in milliseconds since the epoch.
        mutable: whether the record can be changed, so that the function gets a copy.
        arrived: the time of its arrival, in milliseconds since the epoch.
    """

    __slots__ = (
        "arrived",
        "followers",
        "key",
        "mutable",
        "record",
        "results",
        "segment",
        "sent",
        "timestamp",
    )

    def __init__(self, record: Any, timestamp: int, mutable: bool, arrived: int = 0) -> None:
        self.record, self.timestamp, self.mutable = record, timestamp, mutable
        self.arrived = arrived
        #: The records to emit; None until the request has ended.
        self.results: list[Any] | None = None
        #: The number of held elements before the request in an unordered queue.
        self.segment = 0
        #: Whether the request was part of a call.
        self.sent = False
        #: The key of the record if results are shared, and the requests that wait for this one.
        self.key: Any = None
        self.followers: list[Request] | None = None

    def end(self, results: list[Any]) -> None:
        """Set the records to emit."""
        self.results = results

    def emitted(self) -> None:
        """Drop the record and the results, which are no longer needed."""
        self.record, self.results = None, []

    def place_in(self, segment: int) -> None:
        """Set the number of held elements before the request."""
        self.segment = segment

    def hurry(self) -> None:
        """Wait no longer for other records."""
        self.arrived = _LONG_AGO

    def follow(self, leader: Request) -> None:
        """Wait for the results of a request with the same key."""
        if leader.followers is None:
            leader.followers = []
        leader.followers.append(self)

    def take_followers(self) -> list[Request]:
        """Remove and return the requests that wait for this one."""
        followers, self.followers = self.followers, None
        return followers or []


class Call:
    """Requests that are sent together, until the last one of them has ended.

    Arguments:
        requests: the requests, in the order of their records.
    """

    __slots__ = ("_cancel", "attempts", "requests")

    def __init__(self, requests: list[Request]) -> None:
        #: The requests that have not ended.
        self.requests = requests
        #: The number of times that the function was called.
        self.attempts = 0
        self._cancel: Callable[[], None] | None = None
        for request in requests:
            request.sent = True

    def begin(self) -> int:
        """Begin the next attempt, and return its number."""
        self.attempts += 1
        return self.attempts

    def cancels_with(self, cancel: Callable[[], None]) -> None:
        """Set the function that cancels the current attempt."""
        self._cancel = cancel

    def attempt_ended(self, left: list[Request]) -> None:
        """End the current attempt.

        Arguments:
            left: the requests that must be repeated.
        """
        self._cancel = None
        self.requests = left

    def cancel(self) -> None:
        """Cancel the current attempt, if there is one."""
        if self._cancel is not None:
            cancel, self._cancel = self._cancel, None
            cancel()
