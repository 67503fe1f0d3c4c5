"""Who goes first in a process: its records, before the next slice of what its snapshots write.

A record has several tasks on its way, and each may be writing a snapshot, in slices. So slices do
not come one right after the other, whosever they are: in between, what waits is processed, until
nothing waits any more, or for some time. This decides when a slice may come, and writes nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.runtime.system.signal import Signal

__all__ = ["WriteScheduler"]

#: After a slice records go first for so long at most.
MAX_WAIT_SECONDS = 0.002
#: And for so many turns of the event loop at most, should the clock stand still.
MAX_WAIT_TURNS = 32


class WriteScheduler:
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
        #: Writers between two slices, in the order in which they may go on. All but the first
        #: sleep, so that they are no work for it to wait for.
        self._queue: deque[Signal] = deque()
        #: Since the last slice began or ended, whosever it was.
        self._since = -math.inf
        self._turns = 0

    def quiet(self) -> bool:
        """Whether nothing in the process has anything to do now, nor is in the midst of writing."""
        return not self._queue and self._nothing_waits()

    def _nothing_waits(self) -> bool:
        return self._runnable() == 0 and self._waiting()

    async def after_slice(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Let others run after a slice, until the next may come.

        Arguments:
            pause: lets others run once.
        """
        mine = Signal()
        self._queue.append(mine)
        self._start_again()
        try:
            if self._queue[0] is not mine:
                await mine.wait()
            while True:
                await pause()
                self._turns += 1
                if self._turns >= MAX_WAIT_TURNS or self._clock() - self._since >= MAX_WAIT_SECONDS:
                    return
                # Twice: who slept until now is awake after the first, and at work after the second.
                if self._turns > 1 and self._nothing_waits():
                    return
        finally:
            self._queue.remove(mine)
            self._start_again()
            if self._queue:
                self._queue[0].set()

    def _start_again(self) -> None:
        self._since, self._turns = self._clock(), 0
