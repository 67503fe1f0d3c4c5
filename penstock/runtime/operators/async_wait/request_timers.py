"""Keep the times at which requests time out or are repeated."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from penstock.runtime.operators.async_wait.request import Request

__all__ = ["RequestTimers"]


class RequestTimers:
    """The times at which requests time out, and those at which they are repeated.

    Arguments:
        timeout_ms: the longest time of a request, in milliseconds; 0 for no limit.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = timeout_ms
        # All requests have the same timeout, so they time out in the order of their start.
        self._deadlines: deque[tuple[int, Request]] = deque()
        self._repetitions: list[tuple[int, int, Request]] = []
        self._added = 0

    def started(self, request: Request, now: int) -> None:
        """Handle the first attempt of a request, at a time in milliseconds since the epoch."""
        if self._timeout:
            self._deadlines.append((now + self._timeout, request))

    def repeat_at(self, time: int, request: Request) -> None:
        """Repeat a request at a time, in milliseconds since the epoch."""
        self._added += 1
        heappush(self._repetitions, (time, self._added, request))

    def next(self) -> int | None:
        """Return the first time at which something is due; None if there is none."""
        while self._deadlines and self._deadlines[0][1].results is not None:
            self._deadlines.popleft()
        while self._repetitions and self._repetitions[0][2].results is not None:
            heappop(self._repetitions)
        times = [entries[0][0] for entries in (self._deadlines, self._repetitions) if entries]
        return min(times, default=None)

    def take_timed_out(self, now: int) -> Request | None:
        """Remove and return the next request that has timed out."""
        due = self.next()
        if due is None or due > now or not self._deadlines or self._deadlines[0][0] > now:
            return None
        return self._deadlines.popleft()[1]

    def take_repeated(self, now: int) -> Request | None:
        """Remove and return the next request that must be repeated now."""
        due = self.next()
        if due is None or due > now or not self._repetitions or self._repetitions[0][0] > now:
            return None
        return heappop(self._repetitions)[2]
