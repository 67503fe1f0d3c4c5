"""Schedule checkpoint writes within a worker: records are processed between two slices of writing.

A record passes several tasks of a worker, and each may be writing a snapshot, in slices. Without a
schedule the slices of all writers would follow each other, and the record would wait for them. So
after each slice, pending records are processed until none waits, or for a limited time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.runtime.system.signal import Signal

__all__ = ["WriteScheduler"]

#: The longest time for which a writer waits after a slice, in seconds.
MAX_WAIT_SECONDS = 0.002
#: The largest number of turns of the event loop that a writer waits, in case the clock stands.
MAX_WAIT_TURNS = 32


class WriteScheduler:
    """Lets the writers of a worker take turns with its records; shared by all of them.

    Arguments:
        clock: seconds.
        runnable: number of coroutines of the event loop that could run now.
        waiting: whether all tasks of the worker wait for something to do.
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
        #: Writers between two slices, in the order in which they continue. All but the first one
        #: sleep, so that the first one does not take them for pending work.
        self._queue: deque[Signal] = deque()
        #: When the last slice of any writer began or ended.
        self._since = -math.inf
        self._turns = 0

    def quiet(self) -> bool:
        """Return whether nothing in the worker has work, and no writer is between two slices."""
        return not self._queue and self._nothing_waits()

    def _nothing_waits(self) -> bool:
        return self._runnable() == 0 and self._waiting()

    async def after_slice(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Wait after a slice until the next one may begin.

        Arguments:
            pause: lets others of the event loop run once.
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
