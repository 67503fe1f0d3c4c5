"""Keep the times at which calls time out or are repeated."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from penstock.runtime.operators.async_wait.request import Call

#: The number of entries of ended calls that are kept without a reason.
_MANY_ENDED = 1024


class CallTimers:
    """The times at which calls time out, and those at which they are repeated.

    A call that ends leaves its entries behind. They are removed when their time comes, or when
    most entries belong to ended calls. Otherwise one call that hangs would keep the entries
    of all later ones.

    Arguments:
        timeout_ms: the longest time of a call, in milliseconds; 0 for no limit.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = timeout_ms
        # All calls have the same timeout, so they time out in the order of their start.
        self._deadlines: deque[tuple[int, Call]] = deque()
        self._repetitions: list[tuple[int, int, Call]] = []
        self._added = 0
        #: The number of calls that have started and not ended.
        self._open = 0

    def started(self, call: Call, now: int) -> None:
        """Handle the first attempt of a call, at a time in milliseconds since the epoch."""
        self._open += 1
        if self._timeout:
            self._deadlines.append((now + self._timeout, call))

    def ended(self) -> None:
        """Handle the end of a call that has started."""
        self._open -= 1
        most = 2 * self._open + _MANY_ENDED
        if len(self._deadlines) > most:
            self._deadlines = deque(entry for entry in self._deadlines if _is_open(entry[-1]))
        if len(self._repetitions) > most:
            self._repetitions = [entry for entry in self._repetitions if _is_open(entry[-1])]
            heapify(self._repetitions)

    def repeat_at(self, time: int, call: Call) -> None:
        """Repeat a call at a time, in milliseconds since the epoch."""
        self._added += 1
        heappush(self._repetitions, (time, self._added, call))

    def next(self) -> int | None:
        """Return the first time at which something is due; None if there is none."""
        while self._deadlines and not _is_open(self._deadlines[0][-1]):
            self._deadlines.popleft()
        while self._repetitions and not _is_open(self._repetitions[0][-1]):
            heappop(self._repetitions)
        times = [entries[0][0] for entries in (self._deadlines, self._repetitions) if entries]
        return min(times, default=None)

    def take_timed_out(self, now: int) -> Call | None:
        """Remove and return the next call that has timed out."""
        due = self.next()
        if due is None or due > now or not self._deadlines or self._deadlines[0][0] > now:
            return None
        return self._deadlines.popleft()[1]

    def take_repeated(self, now: int) -> Call | None:
        """Remove and return the next call that must be repeated now."""
        due = self.next()
        if due is None or due > now or not self._repetitions or self._repetitions[0][0] > now:
            return None
        return heappop(self._repetitions)[2]


def _is_open(call: Call) -> bool:
    return bool(call.requests)
