"""The steps of tasks whose output depends on more than on their records, for a repetition.

A task takes batches from its channels in some order, with watermarks between them, and fires
timers by the clock. The order depends on chance. A task that restarts while tasks behind it
continue must repeat it, or it would send other records than those that they have processed.

So the task logs each step *before* the records that the step emits are sent, and each batch of
records is preceded by the steps that its receiver does not know. Receivers keep the logs of all
tasks upstream in memory, and pass them on. If some tasks restart, the tasks that continue return
what they know of their logs. The longest log of a task contains all that any of them depends on:
no record was processed before the steps that have led to it were known. (Silvestre et al. 2021,
*Clonos*: causal logging. Steps are logged for batches here, and not for records.)

The log of a task begins behind the barrier of the last complete snapshot. Its steps are numbered
from the start of the region on, and a restart does not change the numbers: all workers know the
same step under the same number. So steps may be on their way between two workers, of which one
already knows of the restart. Nothing here does I/O.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.control.packing import malformed, pack, unpack
from penstock.runtime.network.elements import Element, WatermarkStatus
from penstock.runtime.network.output_channel import Sender

#: A chain and the index of a subtask.
Task = tuple[int, int]
#: A kind of step, and its contents:
#:
#:     TAKEN · link · source · number of records · time of day
#:     MARKED · link · source · watermark, or whether the channel is idle · time of day
#:     FIRED · time of day, for which timers fire
#:     BARRIER · number of the snapshot
#:     EVENT_TIME · what `WatermarkTracker.capture_for_log` returns
#:     RESULTS · places of the requests that leave, among those in flight · their results as a
#:         batch · time of day
#:     READ · id of a split of the task's source · number of records
#:
#: Times are milliseconds since the epoch.
Step = list[Any]
TAKEN, MARKED, FIRED, BARRIER, EVENT_TIME, RESULTS, READ = range(7)
#: The bytes after which the steps for a receiver continue in another frame, about. A receiver that
#: gets no records may lack all results of requests since the last barrier.
PART_BYTES = 1 << 24


class StepLog:
    """The steps of one task behind the barrier of a snapshot, as far as they are known.

    Arguments:
        snapshot: the snapshot; 0 for the beginning of the input.
        first: the number of steps before its barrier.
    """

    def __init__(self, snapshot: int, first: int = 0) -> None:
        self.snapshot = snapshot
        self._first = first
        self._steps: list[Step] = []

    @property
    def end(self) -> int:
        """The number of steps that are known, or were."""
        return self._first + len(self._steps)

    def append(self, step: Step) -> None:
        """Add the next step."""
        self._steps.append(step)

    def after(self, end: int) -> tuple[int, list[Step]]:
        """Return the steps after the first `end` ones, and the number of steps before them."""
        first = max(end, self._first)
        return first, self._steps[first - self._first :]

    def learn(self, first: int, steps: list[Step]) -> None:
        """Add steps of the task, some of which may be known already.

        Arguments:
            first: the number of steps before them.
            steps: the steps.

        Raises:
            ProtocolError: if the steps between are not known.
        """
        if first > self.end:
            raise ProtocolError(f"step {first} follows step {self.end} in a log of steps")
        self._steps += steps[self.end - first :]

    def forget(self, snapshot: int) -> None:
        """Forget the steps before the barrier of a snapshot, which is complete."""
        if (count := self._before(snapshot)) is not None:
            del self._steps[:count]
            self._first += count
            self.snapshot = snapshot

    def restart(self, snapshot: int) -> tuple[int, list[Step]]:
        """Forget the steps before a barrier, and return their number and the others.

        Raises:
            ProtocolError: if the barrier is not known.
        """
        self.forget(snapshot)
        if snapshot != self.snapshot:
            raise ProtocolError(f"a log of steps does not know the barrier of snapshot {snapshot}")
        return self._first, self._steps

    def _before(self, snapshot: int) -> int | None:
        """Return the number of known steps up to the barrier of a snapshot."""
        if snapshot == self.snapshot:
            return 0
        barrier = [BARRIER, snapshot]
        return self._steps.index(barrier) + 1 if barrier in self._steps else None


class StepLogs:
    """The logs of all tasks that one worker knows: its own task, and those upstream of it.

    Arguments:
        snapshot: the snapshot that the worker has restored; 0 for none.
    """

    def __init__(self, snapshot: int) -> None:
        self._snapshot = snapshot
        self._logs: dict[Task, StepLog] = {}

    def of(self, task: Task, first: int = 0) -> StepLog:
        """Return the log of a task, which is empty at first.

        Arguments:
            task: the task.
            first: the number of steps before the restored snapshot.
        """
        if task not in self._logs:
            self._logs[task] = StepLog(self._snapshot, first)
        return self._logs[task]

    def news(self, known: dict[Task, int]) -> Iterator[bytes]:
        """Yield the steps that a receiver does not know, packed, in parts of about `PART_BYTES`.

        Arguments:
            known: the number of steps of each task that were sent to the receiver, which are
                updated.
        """
        news: list[Any] = []
        size = 0
        for task, log in self._logs.items():
            if (begin := known.get(task, 0)) == log.end:
                continue
            first, steps = log.after(begin)
            known[task], begin = log.end, 0
            for end, step in enumerate(steps, 1):
                size += _size(step)
                if size >= PART_BYTES or end == len(steps):
                    news.append([*task, log.snapshot, first + begin, steps[begin:end]])
                    begin = end
                if size >= PART_BYTES:
                    yield pack(news)
                    news, size = [], 0
        if news:
            yield pack(news)

    def learn(self, data: bytes) -> None:
        """Add the steps that another worker has sent.

        Raises:
            ProtocolError: if the data are malformed, or steps are missing.
        """
        with malformed("log of steps"):
            for chain, subtask, snapshot, first, steps in unpack(data, "log of steps"):
                task = operator.index(chain), operator.index(subtask)
                log = self._logs.get(task)
                if log is None:
                    log = self._logs[task] = StepLog(snapshot, first)
                log.learn(first, steps)

    def restart(self, tasks: Iterable[Task], snapshot: int) -> list[Any]:
        """Return what is known of the steps of some tasks, which restart.

        Arguments:
            tasks: the tasks.
            snapshot: the snapshot from which they restart; 0 for the beginning of the input.

        Returns:
            A list of [chain, subtask, number of steps before, steps].

        Raises:
            ProtocolError: if a log does not know the barrier of the snapshot.
        """
        return [
            [*task, *self._logs[task].restart(snapshot)] for task in tasks if task in self._logs
        ]

    def snapshot_completed(self, number: int) -> None:
        """Forget the steps before the barriers of snapshot `number`."""
        for log in self._logs.values():
            log.forget(number)


class LoggingSender:
    """Sends new steps ahead of each batch and marker; a `Sender` like the one behind it.

    Arguments:
        sender: the sending half of a connection.
        logs: the logs of this worker.
    """

    def __init__(self, sender: Sender, logs: StepLogs) -> None:
        self._sender, self._logs = sender, logs
        self._known: dict[Task, int] = {}

    @property
    def credits(self) -> int:
        """Return the number of batches that may be sent now."""
        return self._sender.credits

    @property
    def takes_partial(self) -> bool:
        """Return whether the receiver has taken all batches but those whose credits it keeps."""
        return self._sender.takes_partial

    @property
    def desired_records(self) -> int:
        """Return the number of records that the receiver wants in a batch."""
        return self._sender.desired_records

    @property
    def report_desired_records(self) -> Any:
        """Return the function that sets the callback of the sender."""
        return self._sender.report_desired_records

    def send_batch(self, payload: bytes, count: int) -> None:
        """Send an encoded batch of `count` records, which uses one credit."""
        self._send_steps()
        self._sender.send_batch(payload, count)

    def send_marker(self, element: Element) -> None:
        """Send a marker, such as a barrier."""
        self._send_steps()
        self._sender.send_marker(element)

    def send_steps(self, data: bytes) -> None:
        """Send steps that the worker of the receiver does not know."""
        self._sender.send_steps(data)

    def _send_steps(self) -> None:
        for steps in self._logs.news(self._known):
            self._sender.send_steps(steps)


def _size(step: Step) -> int:
    """Return about how many bytes a step takes."""
    return 50 + (len(step[2]) if step[0] == RESULTS else 0)


def element_of(step: Step) -> Watermark | WatermarkStatus:
    """Return the element of a `MARKED` step."""
    value = step[3]
    return WatermarkStatus(value) if isinstance(value, bool) else Watermark(value)
