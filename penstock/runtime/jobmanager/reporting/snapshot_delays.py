"""Report a snapshot that takes a long time, and the step for which it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.jobmanager.reporting.job_events import JobSnapshotDelayed

#: The time before the first report of a delayed snapshot, and between two reports, in seconds.
REPORT_SECONDS = 10.0

Task = tuple[int, int]


class SnapshotDelays:
    """Decides when to report that a snapshot takes a long time.

    Arguments:
        plan: the execution graph, which has the names and the order of the tasks.
    """

    def __init__(self, plan: ExecutionGraph) -> None:
        self._plan = plan
        #: The number of the snapshot that was reported last, and the number of reports about it.
        self._number, self._reports = -1, 0

    def report(
        self, number: int, seconds: float, missing: Iterable[Task], captured: Mapping[Task, int]
    ) -> JobSnapshotDelayed | None:
        """Return an event if a report about a snapshot is due, and None otherwise.

        Arguments:
            number: the number of the snapshot in flight.
            seconds: the time since the snapshot began.
            missing: the tasks that have not acknowledged the snapshot.
            captured: for each task, the last snapshot for which the task has captured its state.
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
        # If the barrier has not left a task, it cannot have reached the tasks downstream. So only
        # the tasks that are furthest upstream are reported.
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
