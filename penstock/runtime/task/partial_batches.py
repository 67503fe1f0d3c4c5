"""Decide when the tasks of a worker send batches that are not full.

A full batch is sent at once. *Partial* batches are sent in rounds, by all tasks of a worker
together. There is a round in two cases:

* No task of the worker can run. So partial batches are sent at once while there is little to do.
* The buffer timeout has passed since the last round.

A batch has a cost that does not depend on its records. So rounds get a limited share of the
processor time while tasks of the worker can run, or while other processes compete for the
processor. Then the time between two rounds is longer, and batches have more records. In all cases a
channel is left out until its receiver has taken the earlier batches
(`OutputChannel.takes_partial`).

If each task sent its records as soon as it had nothing to do, the tasks behind it would get smaller
batches, have nothing to do earlier, and send still smaller ones. After several dozen hops, batches
would hold single records.

`docs/inside/decisions/044-partial-batches.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.runtime.system.processor import Processor

#: The estimated cost of a batch for its sender and its receiver, in seconds of processor time.
BATCH_SECONDS = 70e-6
#: The share of the processor time that rounds may cost.
PROCESSOR_SHARE = 1 / 10
#: The same as a share of the time of the clock. It counts if the worker hardly gets the processor,
#: or if user functions block.
CLOCK_SHARE = 1 / 25
#: If the worker gets less than this share of a processor, other processes compete for it.
QUIET_SHARE = 0.8


class SendingTask(Protocol):
    """A task whose output buffers may hold records."""

    @property
    def runnable(self) -> bool:
        """Whether the task has work to do now."""

    def send_partial(self) -> int:
        """Send the partial batches that the receivers take, and return the number of batches."""


class PartialBatches:
    """Sends the partial batches of the tasks of one worker.

    Arguments:
        tasks: all tasks of the worker.
        clock: a function that returns the time in seconds.
        processor: measures the processor time of the worker's thread.
        buffer_timeout: the shortest time between two rounds while tasks can run, in seconds.
    """

    def __init__(
        self,
        tasks: Sequence[SendingTask],
        clock: Callable[[], float],
        processor: Processor,
        buffer_timeout: float,
    ) -> None:
        self._tasks = tasks
        self._clock, self._processor = clock, processor
        self._timeout = buffer_timeout
        #: The time from which a round is due while tasks can run, in seconds.
        self._due = 0.0
        #: The processor time, and the time of the clock, from which the last round was a small
        #: enough share.
        self._paid, self._paid_by_clock = 0.0, 0.0
        #: The time at which the task that waits last must call `task_waits` again, in seconds; None
        #: if no partial batches wait for a round.
        self.retry_at: float | None = None

    def task_waits(self, task: SendingTask) -> None:
        """Send partial batches if no other task than `task` can run, or if they are due."""
        self.retry_at = None
        if any(other.runnable and other is not task for other in self._tasks):
            self.send_due()
            return
        now = self._clock()
        if self._processor.share >= QUIET_SHARE or self._is_paid(now):
            self._send(now)
        else:
            self.retry_at = self._paid_by_clock

    def send_due(self) -> None:
        """Send partial batches if they are due. It is called after each slice of a task."""
        now = self._clock()
        if now >= self._due and self._is_paid(now):
            self._send(now)

    def _is_paid(self, now: float) -> bool:
        return now >= self._paid_by_clock or self._processor.seconds() >= self._paid

    def _send(self, now: float) -> None:
        self._processor.measure(now)
        cost = BATCH_SECONDS * sum([task.send_partial() for task in self._tasks])
        self._due = now + self._timeout
        if cost:
            self._paid = self._processor.seconds() + cost / PROCESSOR_SHARE
            self._paid_by_clock = now + cost / CLOCK_SHARE
