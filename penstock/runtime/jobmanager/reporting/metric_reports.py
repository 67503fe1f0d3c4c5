"""Collect the metrics that workers report, and warn of faults of the job."""

from __future__ import annotations

from collections.abc import Collection

from penstock.dataflow.config import JobConfig, RuntimeExecutionMode
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control.messages import Metrics
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.event_time_reports import EventTimeReports
from penstock.runtime.jobmanager.reporting.job_events import JobWarning
from penstock.runtime.jobmanager.reporting.job_metrics import JobMetrics
from penstock.runtime.jobmanager.reporting.straggler_reports import StragglerReports


class MetricReports:
    """Adds up the metrics of a job, and finds faults of event time and slow tasks in them.

    Arguments:
        plan: the execution graph.
        config: the configuration of the job.
    """

    def __init__(self, plan: ExecutionGraph, config: JobConfig) -> None:
        self.metrics = JobMetrics(plan)
        # In batch mode, all windows fire at the end of the input.
        batch = config.runtime_mode is RuntimeExecutionMode.BATCH
        stall_seconds = 0.0 if batch else config.watermark_warning_seconds
        self._event_time = EventTimeReports(plan, stall_seconds)
        window_seconds = config.straggler_window_seconds
        self._stragglers = StragglerReports(plan, config.straggler_factor, window_seconds)

    def begin_attempt(
        self, plan: ExecutionGraph, tasks: Collection[tuple[int, int]] | None = None
    ) -> None:
        """Begin an attempt of some tasks, which count from 0.

        Arguments:
            plan: the execution graph, in which the chains of a region run.
            tasks: the tasks; None for all tasks of the region.
        """
        begun = BegunTasks(plan, tasks)
        self.metrics.begin_attempt(begun)
        self._event_time.begin_attempt(begun)
        self._stragglers.begin_attempt(begun)

    def update(self, plan: ExecutionGraph, metrics: Metrics, now: float) -> list[JobWarning]:
        """Add the metrics that a worker has reported, and return the warnings that are due.

        Arguments:
            plan: the execution graph, in which the chains of the worker's region run.
            metrics: the metrics.
            now: the current time, in seconds.
        """
        self.metrics.update(plan, metrics)
        return [*self._event_time.update(metrics, now), *self._stragglers.update(metrics, now)]
