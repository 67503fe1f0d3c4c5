"""The time of day, as the clock of the machine shows it, and one that does not go back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def wall_clock_of_machine() -> int:
    """Return the time of the machine's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SteadyTimeOfDay:
    """The time of day, which does not go back if the clock of the machine is set back.

    It then goes on at half the pace, until the clock of the machine has caught up. So what waits
    for a time waits twice as long, and not until the clock shows the time again. (In Flink, a timer
    keeps the delay with which it was registered.)

    Arguments:
        wall_clock: returns the time of the machine's clock, in milliseconds since the epoch.
        clock: returns the time of a monotonic clock, in seconds.
    """

    def __init__(self, wall_clock: Callable[[], int], clock: Callable[[], float]) -> None:
        self._wall_clock, self._clock = wall_clock, clock
        #: The time of day before which the machine's clock is not the time: the latest time so far.
        self._least = 0
        #: The time of day when the clock was found to be set back, with the time on `clock`; None
        #: unless the clock of the machine is behind.
        self._ahead: tuple[int, float] | None = None

    def __call__(self) -> int:
        """Return the time of day, in milliseconds since the epoch."""
        now = self._wall_clock()
        if now < self._least:
            return self._goes_on(now)
        self._least = now
        return now

    def _goes_on(self, now: int) -> int:
        """Return the time of day while the clock of the machine is behind or catches up."""
        if self._ahead is None:
            self._ahead, self._least = (self._least, self._clock()), sys.maxsize
        began, at = self._ahead
        own = began + int((self._clock() - at) * 500)
        if now < own:
            return own
        self._ahead, self._least = None, now
        return now
