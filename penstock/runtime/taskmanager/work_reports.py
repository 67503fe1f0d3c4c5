"""Report what the tasks of a worker have done, so that the JobManager finds slow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.task_runner import TaskRunner

#: A task looks slow if it was busy or blocked for this share of the time since the last report.
#: Then the keys of some records are looked at until the next one.
SLOW_SHARE = 0.5
#: The number of splits of a task that are reported.
MOST_SPLITS = 5


class WorkReports:
    """Makes the fields of `Metrics` from which the JobManager finds slow tasks.

    Arguments:
        clock: returns the time in seconds.
        process: returns the figures of the process; None if there are none.
    """

    def __init__(
        self, clock: Callable[[], float], process: Callable[[], list[float]] | None
    ) -> None:
        self._clock, self._process = clock, process
        #: The time of the last report, and for each task the time that it was at work until then.
        self._last: dict[tuple[int, int], tuple[float, float]] = {}

    def fields(self, runners: Iterable[TaskRunner]) -> tuple[float, list[list[Any]], list[float]]:
        """Return the fields `clock`, `work` and `process` of the message."""
        now = self._clock()
        rows = [self._row(runner.task, now) for runner in runners]
        return now, rows, [] if self._process is None else self._process()

    def _row(self, task: Task, now: float) -> list[Any]:
        at_work = task.slices.busy_seconds + task.outputs.blocked_seconds
        sampled, keys = task.keys.take()
        before, time = self._last.get(task.id, (at_work, now))
        self._last[task.id] = at_work, now
        if at_work - before > SLOW_SHARE * (now - time):
            task.keys.request()
        source, splits = task.source_input, []
        if source is not None:
            splits = source.open_splits[:MOST_SPLITS]
        reading = 0.0 if source is None else source.reading_seconds
        records = task.chain.root.operator.records_in
        return [*task.id, records, reading, task.ended, splits, sampled, keys]
