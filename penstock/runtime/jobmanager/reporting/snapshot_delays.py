"""Reports a snapshot that is in flight for long, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.jobmanager.reporting.job_events import JobSnapshotDelayed

__all__ = ["SnapshotDelays"]

#: The time before the first report of a snapshot, and between two reports.
REPORT_SECONDS = 10.0

Task = tuple[int, int]


class SnapshotDelays:
    """Decides when a delay is reported.

    Arguments:
        plan: the execution graph, for names and for the order of the tasks.
    """

    def __init__(self, plan: ExecutionGraph) -> None:
        self._plan = plan
        #: The snapshot that was reported last, and the number of its reports.
        self._number, self._reports = -1, 0

    def report(
        self, number: int, seconds: float, missing: Iterable[Task], captured: Mapping[Task, int]
    ) -> JobSnapshotDelayed | None:
        """Return an event if a report is due.

        Arguments:
            number: of the snapshot in flight.
            seconds: the time since it began.
            missing: the tasks that have not acknowledged it.
            captured: the last snapshot that each task has captured its state for.
        """
        if number != self._number:
            self._number, self._reports = number, 0
        if seconds < REPORT_SECONDS * (self._reports + 1):
            return None
        self._reports = int(seconds / REPORT_SECONDS)
        waiting = self._waiting(number, sorted(missing), captured)
        return JobSnapshotDelayed(number, seconds, waiting)

    def _waiting(self, number: int, missing: list[Task], captured: Mapping[Task, int]) -> str:
        if not missing:
            return "the manifest to be written"
        without = [task for task in missing if captured.get(task, -1) < number]
        if not without:
            return f"{self._named(missing)} to write its state"
        # The barrier has not reached the tasks behind a task that it has not left.
        behind = {task[0] for task in without}
        links = self._plan.links
        first = [
            task
            for task in without
            if not any(
                not links[link].is_back_edge and links[link].source in behind
                for link in self._plan.chains[task[0]].inputs
            )
        ]
        return f"the barrier at {self._named(first or without)}"

    def _named(self, tasks: list[Task]) -> str:
        chain, subtask = tasks[0]
        others = f" and at {len(tasks) - 1} more" if len(tasks) > 1 else ""
        return f"{self._plan.chains[chain].name!r} (subtask {subtask}){others}"
