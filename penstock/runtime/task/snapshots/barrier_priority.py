"""Schedule the tasks of a worker so that barriers travel quickly.

The tasks of a worker share one core. At each task, a barrier waits behind the records in front of
it. At full load, processing these records takes tens of milliseconds. Meanwhile the tasks that
have captured their state compete for the core with the tasks that have not. So tasks have
priorities:

* Shortly before an announced barrier is due, source tasks yield to all other tasks of their worker.
  So there are fewer records in flight when the barrier begins.
* A task that has captured its state yields to the tasks that have not.

A task yields only while another task has work, so the core is never idle. It yields for a limited
time, so that a task that is always busy cannot stop a source.

`docs/inside/decisions/037-barrier-priority.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.runtime.system.signal import Signal

#: The time before a barrier is due at which source tasks begin to yield, in seconds.
#: `DRAIN_SHARE` limits this time to a share of the time from the announcement to the barrier.
DRAIN_SECONDS, DRAIN_SHARE = 0.02, 4 / 5
#: The maximum time for which tasks yield because of one snapshot, in seconds.
LONGEST_SECONDS = 0.05


class PrioritizedTask(Protocol):
    """The properties of a task that determine its priority."""

    @property
    def last_snapshot(self) -> int:
        """The number of the newest snapshot for which the task has captured its state."""

    @property
    def is_source(self) -> bool:
        """Whether the task reads a source."""

    @property
    def runnable(self) -> bool:
        """Whether the task has work to do now."""

    def flush(self) -> None:
        """Send the records in the task's output buffers."""


class BarrierPriority:
    """Decides which tasks of a worker yield to other tasks while a snapshot begins.

    Arguments:
        tasks: all tasks of the worker.
        clock: a function that returns the time in seconds.
    """

    def __init__(self, tasks: Sequence[PrioritizedTask], clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock
        #: The number of the snapshot for which tasks yield.
        self._number = 0
        #: The time until which tasks yield, in seconds.
        self._until = 0.0
        #: The number of the announced snapshot, and the time from which sources yield for it.
        self._announced, self._drain_at = 0, 0.0
        self._yielding: list[Signal] = []

    def announce(self, number: int, seconds: float) -> None:
        """Expect a barrier, so that sources yield shortly before it is due.

        Arguments:
            number: the number of the snapshot.
            seconds: the time until the barrier is due, in seconds.
        """
        drain = min(DRAIN_SECONDS, seconds * DRAIN_SHARE)
        self._announced, self._drain_at = number, self._clock() + seconds - drain

    async def yield_to_others(self, task: PrioritizedTask) -> None:
        """Wait while tasks with a higher priority have work to do."""
        self._begin()
        if self._must_yield(task):
            task.flush()
        while self._must_yield(task):
            signal = Signal()
            self._yielding.append(signal)
            try:
                await signal.wait(self._until)
            finally:
                self._yielding.remove(signal)
        if self._yielding and not self._others_run():
            self.reconsider()

    def reconsider(self) -> None:
        """Wake the yielding tasks, so that they check their priority again.

        It is called when another task has no more work.
        """
        for signal in self._yielding:
            signal.set()

    def _begin(self) -> None:
        """Start a period of yielding if a barrier has arrived or is due soon."""
        newest = max(task.last_snapshot for task in self._tasks)
        now = self._clock()
        if now >= self._drain_at:
            newest = max(newest, self._announced)
        if newest > self._number:
            self._number, self._until = newest, now + LONGEST_SECONDS

    def _must_yield(self, task: PrioritizedTask) -> bool:
        return self._goes_last(task) and self._clock() < self._until and self._others_run()

    def _others_run(self) -> bool:
        return any(other.runnable and not self._goes_last(other) for other in self._tasks)

    def _goes_last(self, task: PrioritizedTask) -> bool:
        announced = task.is_source and self._announced == self._number
        return announced or task.last_snapshot == self._number
