"""Add up the metrics of a job over its subtasks and attempts."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control.messages import Metrics
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.metric_totals import MetricTotals


class JobMetrics:
    """Adds up the metrics that workers report.

    Arguments:
        plan: the execution graph, which has the names of the operators.
    """

    def __init__(self, plan: ExecutionGraph) -> None:
        self._plan = plan
        #: The number of records in and out of each operator in this attempt, keyed by uid and
        #: subtask.
        self._operators: dict[tuple[str, int], tuple[int, int]] = {}
        #: The watermark of each subtask of each operator; None before the first one.
        self._watermarks: dict[str, dict[int, int | None]] = {}
        #: The number of records in and out of each operator in all earlier attempts, keyed by uid.
        self._before: dict[str, tuple[int, int]] = {}
        self._tasks: dict[tuple[int, int], tuple[float, float, int]] = {}
        #: For each task, the last snapshot for which the task has captured its state.
        self.captured: dict[tuple[int, int], int] = {}
        #: For each link that is a back-edge and each of its channels, the number of queued records
        #: and of bytes on disk.
        self._back_edges: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}
        #: For each link that is a back-edge, the highest number of queued records in the link, and
        #: of bytes on disk in one of its channels.
        self._most: dict[int, tuple[int, int]] = {}
        #: The metrics that functions and the engine have added to their operators.
        self._metrics = MetricTotals()
        #: The highest resident memory of each worker over all attempts, in bytes. The key is the
        #: first chain of its region, and its slot.
        self.peaks: dict[tuple[int, int], int] = {}

    def begin_attempt(self, begun: BegunTasks) -> None:
        """Keep only the sums of what the last attempt of some tasks has reported.

        Arguments:
            begun: the tasks, which begin a new attempt.
        """
        self._plan = begun.plan
        for (uid, subtask), (records_in, records_out) in [*self._operators.items()]:
            if begun.has_operator(uid, subtask):
                before_in, before_out = self._before.get(uid, (0, 0))
                self._before[uid] = (before_in + records_in, before_out + records_out)
                del self._operators[uid, subtask]
                self._watermarks.get(uid, {}).pop(subtask, None)
        self._tasks = {task: one for task, one in self._tasks.items() if not begun.has_task(*task)}
        for link in begun.plan.links:
            channels = self._back_edges.get(link.id, {})
            for source, target in [*channels]:
                if begun.has_task(link.target, target):
                    del channels[source, target]
        self._metrics.begin_attempt(begun)

    def update(self, plan: ExecutionGraph, metrics: Metrics) -> None:
        """Add the metrics that a worker has reported.

        Arguments:
            plan: the execution graph, in which the chains of the worker's region run.
            metrics: the metrics.
        """
        self._metrics.update(metrics.metrics)
        for uid, subtask, records_in, records_out, watermark, _ in metrics.operators:
            self._operators[uid, subtask] = (records_in, records_out)
            self._watermarks.setdefault(uid, {})[subtask] = watermark
        for chain, subtask, busy, blocked, queued, captured, _ in metrics.tasks:
            self._tasks[chain, subtask] = (busy, blocked, queued)
            self.captured[chain, subtask] = captured
        for link, source, target, queued, spilled, peak in metrics.back_edges:
            channels = self._back_edges.setdefault(link, {})
            channels[source, target] = (queued, spilled)
            records, size = self._most.get(link, (0, 0))
            total = sum(figures[0] for figures in channels.values())
            self._most[link] = (max(records, total), max(size, peak))
        worker = plan.running_chains[0].id, metrics.worker
        self.peaks[worker] = max(self.peaks.get(worker, 0), metrics.peak)

    def _totals(self) -> dict[str, tuple[int, int]]:
        """Return the number of records in and out of each operator, over all attempts."""
        totals = dict(self._before)
        for (uid, _), (records_in, records_out) in self._operators.items():
            before_in, before_out = totals.get(uid, (0, 0))
            totals[uid] = (before_in + records_in, before_out + records_out)
        return totals

    def _watermark(self, uid: str) -> int | None:
        """Return the lowest watermark of an operator's subtasks; None if one of them has none."""
        found = self._watermarks.get(uid, {}).values()
        known = [watermark for watermark in found if watermark is not None]
        return min(known) if known and len(known) == len(found) else None

    def operators(self) -> list[dict[str, Any]]:
        """Return the figures of each operator, as one map each.

        The numbers of records are sums over all attempts. Records that are replayed after a restart
        count again. The other figures are of the current attempt. `watermark` is in milliseconds
        since the epoch; None if the operator has none.
        """
        totals = self._totals()
        chain_of = {
            node.operator.uid: chain.id for chain in self._plan.chains for node in chain.root.walk()
        }
        tasks_of: dict[int, list[tuple[float, float, int]]] = {}
        for (chain, _), figures in self._tasks.items():
            tasks_of.setdefault(chain, []).append(figures)
        rows = []
        for info in self._plan.operators:
            records_in, records_out = totals.get(info.uid, (0, 0))
            tasks = tasks_of.get(chain_of[info.uid], [])
            rows.append(
                {
                    "uid": info.uid,
                    "name": self._plan.shown_names[info.uid],
                    "source": info.spec.is_source,
                    "parallelism": info.parallelism,
                    "records_in": records_in,
                    "records_out": records_out,
                    "busy_seconds": round(sum(t[0] for t in tasks), 3),
                    "blocked_seconds": round(sum(t[1] for t in tasks), 3),
                    "queued": sum(t[2] for t in tasks),
                    "watermark": self._watermark(info.uid),
                }
            )
        return rows

    def tasks(self) -> list[list[Any]]:
        """Return the figures of each task, in the current attempt.

        A row is [chain, subtask, busy seconds, blocked seconds, queued elements].
        """
        return [[*task, *figures] for task, figures in self._tasks.items()]

    def subtasks(self) -> dict[str, list[list[Any]]]:
        """Return the figures of the subtasks of each operator, by its uid, in this attempt.

        A row is [subtask, records in, records out, watermark].
        """
        rows: dict[str, list[list[Any]]] = {}
        for (uid, subtask), records in self._operators.items():
            watermark = self._watermarks[uid][subtask]
            rows.setdefault(uid, []).append([subtask, *records, watermark])
        return rows

    def metrics(self) -> list[dict[str, Any]]:
        """Return each metric of each operator, as one map; see `MetricTotals.rows`."""
        return self._metrics.rows(self._plan.shown_names)

    def loops(self) -> list[dict[str, Any]]:
        """Return for each back-edge the number of waiting records, now and at most.

        `spilled_bytes_max` is the maximum of one channel. The other figures are sums over all
        channels of the back-edge.
        """
        names = {info.uid: info.name for info in self._plan.operators}
        rows = []
        for link in self._plan.links:
            if not link.is_back_edge:
                continue
            channels = self._back_edges.get(link.id, {}).values()
            records, size = self._most.get(link.id, (0, 0))
            rows.append(
                {
                    "name": f"{names[link.producer]} → {names[link.consumer]}",
                    "queued_records": sum(figures[0] for figures in channels),
                    "spilled_bytes": sum(figures[1] for figures in channels),
                    "queued_records_max": records,
                    "spilled_bytes_max": size,
                }
            )
        return rows
