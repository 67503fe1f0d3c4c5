"""Report the snapshots and metrics of a worker to the JobManager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

from penstock.dataflow.time.watermark import MIN_WATERMARK
from penstock.runtime.control import messages as m
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement, CheckpointResponder
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.gc_tuning import process_memory
from penstock.runtime.taskmanager.task_runner import TaskRunner
from penstock.runtime.taskmanager.work_reports import WorkReports
from penstock.snapshot.metadata.plain_values import NOT_PLAIN, require_plain


class SnapshotReporter(CheckpointResponder):
    """Reports the snapshots of one task to the JobManager.

    Arguments:
        task: the number of the chain and the index of the subtask.
        names: the names of the job's operators, by uid.
        codec: the codec of the worker.
        send: sends a message to the JobManager.
        send_metrics: sends the worker's metrics to the JobManager.
    """

    def __init__(
        self,
        task: tuple[int, int],
        names: Mapping[str, str],
        codec: Codec,
        send: Callable[[m.Message], None],
        send_metrics: Callable[[], None],
    ) -> None:
        self._task = task
        self._names = names
        self._codec = codec
        self._send = send
        self._send_metrics = send_metrics

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Report that a task snapshot is durable.

        Before the final snapshot of the job is reported, the metrics are sent, since the job may
        end afterwards.

        Raises:
            GraphError: if a committable or a split has a value that a snapshot cannot contain.
        """
        if acknowledgement.final:
            self._send_metrics()
        committables = [
            [c.lineage, c.uid, c.subtask, c.snapshot, c.attempt, c.payload]
            for c in acknowledgement.committables
        ]
        message = m.Acknowledge(
            *self._task,
            acknowledgement.number,
            [handle.to_wire() for handle in acknowledgement.handles],
            committables,
            acknowledgement.size.new,
            acknowledgement.size.linked,
            acknowledgement.aligned_seconds,
            acknowledgement.capture_seconds,
            acknowledgement.blocked_seconds,
            acknowledgement.write_seconds,
            acknowledgement.log_records,
            acknowledgement.log_bytes,
            None if acknowledgement.loop is None else [*astuple(acknowledgement.loop)],
            self._codec.written_types(),
        )
        try:
            self._send(message)
        except NOT_PLAIN:
            self._require_plain(acknowledgement)
            raise

    def _require_plain(self, acknowledgement: Acknowledgement) -> None:
        """Raise an error with the operator's name if a value cannot be sent."""
        for committable in acknowledgement.committables:
            name = self._names[committable.uid]
            require_plain("committable's payload", committable.payload, name)
        for handle in acknowledgement.handles:
            require_plain(
                "list of splits with their positions", handle.small, self._names[handle.uid]
            )

    def decline(self, number: int, reason: str) -> None:
        """Report that the task cannot contribute to snapshot `number`, with the reason."""
        self._send(m.Decline(*self._task, number, reason))


def metrics_report(
    worker: int, runners: Iterable[TaskRunner], work: WorkReports | None = None
) -> m.Metrics:
    """Return the message with the metrics of a worker.

    Arguments:
        worker: the index of the worker.
        runners: the runners of the worker's tasks.
        work: reports what the tasks have done; None if the JobManager does not look for slow tasks.
    """
    operators, tasks, back_edges = [], [], []
    metrics: list[list[Any]] = []
    for runner in runners:
        task = runner.task
        for operator in task.chain.operators:
            watermark = operator.context.watermark
            known = watermark if watermark > MIN_WATERMARK else None
            counts = [operator.records_in, operator.records_out, known]
            waits = operator.waits_for_watermark()
            operators.append([operator.context.uid, task.id[1], *counts, waits])
            metrics += metrics_of(operator.context)
        queued = sum(len(channel) for channel in task.gate.channels.values())
        figures = [
            task.slices.busy_seconds,
            task.outputs.blocked_seconds,
            queued,
            task.snapshots.last_snapshot,
            _holder(task),
        ]
        tasks.append([*task.id, *figures])
        for id, edge in task.gate.back_edges.items():
            on_disk = [edge.queued_records, edge.spilled_bytes, edge.spilled_peak]
            back_edges.append([id.link, id.source, id.target, *on_disk])
    resident, peak = process_memory()
    done = (0.0, [], []) if work is None else work.fields(runners)
    return m.Metrics(worker, operators, tasks, back_edges, metrics, resident, peak, *done)


def _holder(task: Task) -> list[Any] | None:
    """Return the input of a task with the lowest watermark, in the form of the message."""
    source = task.source_input
    if source is None:
        channel = task.event_time.holder()
        return None if channel is None else ["channel", channel.link, channel.source]
    if source.ended or (source.watermarks is not None and source.watermarks.idle):
        return None
    if source.watermarks is None or not source.watermarks.has_watermarks:
        return ["no strategy"]
    split = source.watermarks.holder()
    return ["no split"] if split is None else ["split", split]


def metrics_of(context: OperatorContext) -> Iterator[list[Any]]:
    """Yield the metrics of an operator, in the form of the message."""
    for path, name, metric in context.metrics.all_metrics():
        parts = [part if isinstance(part, str) else [*part] for part in path]
        yield [context.uid, context.subtask, parts, name, metric.kind, metric.report()]
