"""Log the steps of a task, and keep those that it must repeat.

The steps determine the output of the task, together with the records of each of its channels
(`penstock.runtime.network.step_logs`). Its functions read the time of day of the current step, so
they read the same one when the step is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.network.step_logs import (
    BARRIER,
    EVENT_TIME,
    FIRED,
    MARKED,
    RESULTS,
    TAKEN,
    Step,
    StepLog,
)
from penstock.runtime.task.watermark_tracker import WatermarkTracker


class TaskSteps:
    """The steps of one task.

    The time of day of its steps never goes back, even if the clock does: what an operator remembers
    of earlier times is not in snapshots.

    Arguments:
        log: the log of the task.
        to_repeat: the steps that its predecessor has done behind the barrier of the restored
            snapshot, as far as others depend on them.
        wall_clock: returns the time of day, in milliseconds since the epoch.
        repeated: called when all of `to_repeat` are repeated.
    """

    def __init__(
        self,
        log: StepLog,
        to_repeat: Iterable[Step],
        wall_clock: Callable[[], int],
        repeated: Callable[[], None],
    ) -> None:
        self._log, self._wall_clock, self._repeated = log, wall_clock, repeated
        self._left = deque(to_repeat)
        #: The time of day of the current step, in milliseconds since the epoch.
        self._now = wall_clock()
        self._barrier = -1

    def now(self) -> int:
        """Return the time of day of the current step, in milliseconds since the epoch."""
        return self._now

    def later_now(self) -> int:
        """Return the time of day of a step that would begin now, also if none does."""
        return max(self._now, self._wall_clock())

    # ---- new steps

    def taken(self, channel: ChannelId, count: int) -> None:
        """Log that the task takes a batch of `count` records from a channel."""
        self._set_now(self._wall_clock())
        self._log.append([TAKEN, channel.link, channel.source, count, self._now])

    def marked(self, channel: ChannelId, element: TimeElement) -> None:
        """Log that the task takes an element of event time from a channel."""
        self._set_now(self._wall_clock())
        value = element.timestamp if isinstance(element, Watermark) else element.idle
        self._log.append([MARKED, channel.link, channel.source, value, self._now])

    def fired(self, now: int) -> int:
        """Log that the timers of a time of day fire, and return the time of day of the step."""
        self._set_now(now)
        self._log.append([FIRED, self._now])
        return self._now

    def emits_results(self) -> None:
        """Set the time of day of a step that emits results of requests, if there are any."""
        self._set_now(self._wall_clock())

    def results(self, places: list[int], batch: bytes) -> None:
        """Log that requests leave, and their results as an encoded batch."""
        self._log.append([RESULTS, places, batch, self._now])

    def begin(self, event_time: WatermarkTracker) -> None:
        """Log the event time with which the task begins, unless it repeats a log."""
        if not self._left:
            self._log.append([EVENT_TIME, event_time.capture_for_log()])

    def barrier(self, number: int, event_time: WatermarkTracker) -> None:
        """Log that the task takes snapshot `number`, unless that is logged already.

        A part of its event time is not in the snapshot, so it is in the log.
        """
        if number > self._barrier:
            self._barrier = number
            self._log.append([BARRIER, number])
            self._log.append([EVENT_TIME, event_time.capture_for_log()])

    def _set_now(self, now: int) -> None:
        self._now = max(self._now, now)

    # ---- repeated steps

    @property
    def next(self) -> Step | None:
        """Return the next step to repeat; None if there is none."""
        return self._left[0] if self._left else None

    def repeat(self, step: Step) -> None:
        """Begin to repeat a step: log it, and set its time of day."""
        if step[0] in (TAKEN, MARKED, FIRED, RESULTS):
            self._now = step[-1]
        self._log.append(step)

    def done(self) -> None:
        """Go on to the step behind the one that was repeated."""
        self._left.popleft()
        if not self._left:
            self._repeated()
