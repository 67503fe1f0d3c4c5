"""Who goes first in a process: its records, before the next slice of what its snapshots write.

A record has several tasks on its way, and each may be writing a snapshot, in slices. So slices do
not come one right after the other, whosever they are: in between, what waits is processed, until
nothing waits any more, or for some time. This decides when a slice may come, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

__all__ = ["Patience"]

#: After a slice records go first for so long at most.
PATIENCE_SECONDS = 0.002
#: And for so many turns of the event loop at most, should the clock stand still.
PATIENCE_TURNS = 32


class Patience:
    """Shared by all that write snapshots in a process.

    Arguments:
        clock: seconds.
        runnable: how many others of the event loop could run now.
        waiting: whether all tasks of the process wait for something to do.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        runnable: Callable[[], int],
        waiting: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._runnable = runnable
        self._waiting = waiting
        #: How many slices there were, and when the last one ended.
        self._slices = 0
        self._last = -math.inf
        #: How many writers are between two slices now, with nothing to do but to look again.
        self._patient = 0

    def quiet(self) -> bool:
        """Whether nothing in the process has anything to do now, but to wait for just that."""
        return self._runnable() <= self._patient and self._waiting()

    async def after_slice(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Let others run after a slice, until the next may come."""
        self._slices += 1
        self._last = self._clock()
        turns = 0
        while turns < PATIENCE_TURNS:
            seen = self._slices
            self._patient += 1
            try:
                await pause()
            finally:
                self._patient -= 1
            # Another writer may have been first; then records come before us once more.
            turns = turns + 1 if self._slices == seen else 0
            if not turns:
                continue
            # Twice: who has slept until now is awake after the first, and at work after the second.
            if self._clock() >= self._last + PATIENCE_SECONDS or (turns > 1 and self.quiet()):
                return
