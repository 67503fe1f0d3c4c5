"""Schedule the tasks of a worker so that barriers travel quickly.

The tasks of a worker share one core. A barrier waits behind the records in front of it, at each
task on its way. At full load that is tens of milliseconds of work, and the tasks that the barrier
has passed compete with the tasks that it has not. So there is an order between tasks:

* Shortly before an announced barrier is due, sources yield to all other tasks of their worker. The
  records in flight become fewer before the barrier comes.
* When a task has made its cut, it yields to the tasks that have not.

A task yields only while another one has something to do, so it leaves no core idle. It yields for
a limited time, so that a task that is always busy does not hold back a source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.runtime.system.signal import Signal

__all__ = ["BarrierPriority", "PrioritizedTask"]

#: Sources yield from this time before a barrier is due. It is a share of the time since the
#: announcement if that is short.
DRAIN_SECONDS, DRAIN_SHARE = 0.02, 4 / 5
#: The longest time for which tasks yield because of one snapshot.
LONGEST_SECONDS = 0.05


class PrioritizedTask(Protocol):
    """A task as the order depends on it."""

    @property
    def last_snapshot(self) -> int:
        """The number of the newest snapshot that the task has made its cut for."""

    @property
    def is_source(self) -> bool:
        """Whether the task reads a source."""

    @property
    def runnable(self) -> bool:
        """Whether the task has something to do."""

    def flush(self) -> None:
        """Send the records in the task's output buffers."""


class BarrierPriority:
    """The order between the tasks of one worker.

    Arguments:
        tasks: all tasks of the worker.
        clock: seconds.
    """

    def __init__(self, tasks: Sequence[PrioritizedTask], clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock
        #: The snapshot that tasks yield for, and until when.
        self._number = 0
        self._until = 0.0
        #: The announced snapshot, and from when sources yield for it.
        self._announced, self._drain_at = 0, 0.0
        self._yielding: list[Signal] = []

    def announce(self, number: int, seconds: float) -> None:
        """Expect a barrier.

        Arguments:
            number: of its snapshot.
            seconds: time until it is due.
        """
        drain = min(DRAIN_SECONDS, seconds * DRAIN_SHARE)
        self._announced, self._drain_at = number, self._clock() + seconds - drain

    async def yield_to_others(self, task: PrioritizedTask) -> None:
        """Return when no other task goes first."""
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
        """Wake the tasks that yield, to look again; for when a task starts to wait."""
        for signal in self._yielding:
            signal.set()

    def _begin(self) -> None:
        """Find out whether a barrier has come or is about to come."""
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
