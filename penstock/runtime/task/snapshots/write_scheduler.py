"""Schedule checkpoint writes within a worker: records are processed between two slices of writing.

A record passes several tasks of a worker, and each of these tasks may be writing a snapshot in
slices. Without a schedule, the slices of all writers could follow one another, and the record would
wait for all of them. So after each slice, the tasks process the pending records for a limited time.

`docs/inside/decisions/035-write-scheduler.md` has the reasons and the figures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable

from penstock.runtime.system.signal import Signal

#: The maximum time for which a writer waits after a slice, in seconds.
MAX_WAIT_SECONDS = 0.002
#: The maximum number of turns of the event loop for which a writer waits. This limit is needed if
#: a virtual clock does not advance.
MAX_WAIT_TURNS = 32


class WriteScheduler:
    """Delays checkpoint writers, so that records are processed between slices.

    All writers of the worker share one scheduler.

    Arguments:
        clock: a function that returns the time in seconds.
        runnable: a function that returns the number of coroutines of the event loop that could run
            now.
        waiting: a function that returns whether all tasks of the worker are waiting for work.
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
        #: The signals of the writers that are between two slices, in the order in which they
        #: continue. All writers except the first sleep, so that they do not count as pending work.
        self._queue: deque[Signal] = deque()
        #: The time at which the last slice of any writer began or ended, in seconds.
        self._since = -math.inf
        self._turns = 0

    def quiet(self) -> bool:
        """Return whether the worker has no work and no writer is between two slices."""
        return not self._queue and self._nothing_waits()

    def _nothing_waits(self) -> bool:
        return self._runnable() == 0 and self._waiting()

    async def after_slice(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Wait after a slice until the next one may begin.

        Arguments:
            pause: a function that lets the other coroutines of the event loop run once.
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
                # Two pauses are needed: a sleeping task wakes in the first and works in the second.
                if self._turns > 1 and self._nothing_waits():
                    return
        finally:
            self._queue.remove(mine)
            self._start_again()
            if self._queue:
                self._queue[0].set()

    def _start_again(self) -> None:
        self._since, self._turns = self._clock(), 0
