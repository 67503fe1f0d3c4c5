"""List the metrics of a job under Flink's names and scopes: for the HTTP API and Prometheus.

Names and units are those of Flink's page *Metrics*. A metric of Penstock that Flink does not have
has a name of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from penstock.dataflow.job_client import JobStatus
from penstock.runtime.control.job_state import JobState

#: The statuses for which Flink has the metrics `<status>State`.
_STATUSES = {
    "running": JobStatus.RUNNING,
    "restarting": JobStatus.RESTARTING,
    "cancelling": JobStatus.CANCELLING,
    "initializing": JobStatus.INITIALIZING,
}


class MetricScope(Enum):
    """Name the part of a job that a metric describes: Flink's scopes, as in Prometheus."""

    CLUSTER = "jobmanager"
    JOB = "jobmanager_job"
    TASK = "taskmanager_job_task"
    OPERATOR = "taskmanager_job_task_operator"


class Measurement(NamedTuple):
    """The value of a metric.

    Arguments:
        scope: what it belongs to.
        name: the name, with the names of groups before it and dots between them.
        value: a number, or a text.
        labels: the values that tell it from others of its name, in Flink's names of variables.
        vertex, subtask: the task that it belongs to; None for those of a job.
        variables: the values of key-value groups, by key.
    """

    scope: MetricScope
    name: str
    value: float | str
    labels: dict[str, str]
    vertex: int | None = None
    subtask: int | None = None
    variables: dict[str, str] | None = None


def measurements(job: JobState) -> Iterator[Measurement]:
    """Yield the metrics of a job, of its tasks and of their operators."""
    yield from job_measurements(job)
    for vertex in job.graph["vertices"]:
        yield from vertex_measurements(job, vertex)


def cluster_measurements(jobs: Iterable[JobState], slots: int, free: int) -> Iterator[Measurement]:
    """Yield the metrics of the owner of all jobs.

    Arguments:
        jobs: all jobs.
        slots: the number of slots; 0 if it is not limited.
        free: the number of slots that no job takes.
    """
    active = [job for job in jobs if not job.ended]
    workers = sum(len(job.worker_pids) for job in active)
    for name, value in (
        ("numRunningJobs", len(active)),
        ("numRegisteredTaskManagers", workers),
        ("taskSlotsTotal", max(slots, workers)),
        ("taskSlotsAvailable", free),
    ):
        yield Measurement(MetricScope.CLUSTER, name, value, {})


def job_measurements(job: JobState) -> Iterator[Measurement]:
    """Yield the metrics of a job without those of its tasks."""
    labels = _labels(job)
    now = job.now_ms()
    running = job.since_ms.get(JobStatus.RUNNING)
    pending = sum(one.status == "IN_PROGRESS" for one in job.snapshots)
    values: dict[str, float | str] = {
        "numRestarts": job.restarts,
        "uptime": now - running if running is not None and not job.ended else 0,
        "numberOfInProgressCheckpoints": pending,
        "numberOfCompletedCheckpoints": job.completed,
        "numberOfFailedCheckpoints": job.failed,
        "totalNumberOfCheckpoints": job.completed + job.failed + pending,
    }
    for name, status in _STATUSES.items():
        values[f"{name}State"] = int(job.status is status)
    newest = max(
        (job.latest[kind] for kind in ("completed", "savepoint") if kind in job.latest),
        key=lambda one: one.number,
        default=None,
    )
    if newest is not None and newest.figures is not None:
        values["lastCompletedCheckpointId"] = newest.number
        values["lastCheckpointDuration"] = newest.figures["duration_ms"]
        values["lastCheckpointSize"] = newest.figures["bytes_new"]
        values["lastCheckpointFullSize"] = newest.figures["bytes_total"]
        # A job that an earlier version began has no such figures.
        values["lastCheckpointSentSize"] = newest.figures.get("bytes_sent", 0)
        values["lastCheckpointPersistedData"] = newest.figures["log_bytes"]
        values["lastCheckpointAlignmentTime"] = newest.figures["aligned_ms"]
        location = job.location(newest.number)
        if location is not None:
            values["lastCheckpointExternalPath"] = location
    if job.resumed is not None:
        values["lastCheckpointRestoreTimestamp"] = job.resumed[1]
    for name, value in values.items():
        yield Measurement(MetricScope.JOB, name, value, labels)


def vertex_measurements(job: JobState, vertex: dict[str, Any]) -> Iterator[Measurement]:
    """Yield the metrics of the tasks of a vertex, and of their operators."""
    figures = job.figures
    if figures is None:
        return
    of_vertex = {
        **_labels(job),
        "task_id": str(vertex["id"]),
        "task_name": vertex["name"],
    }
    first, last = vertex["operators"][0]["uid"], vertex["operators"][-1]["uid"]
    for subtask in range(vertex["parallelism"]):
        task = figures.tasks.get((vertex["id"], subtask))
        if task is None:
            continue
        labels = {**of_vertex, "subtask_index": str(subtask)}
        shares = job.shares(vertex["id"], subtask)
        received = figures.subtasks.get((first, subtask), (0, 0, None))[0]
        emitted = figures.subtasks.get((last, subtask), (0, 0, None))[1]
        values: dict[str, float | str] = {
            "numRecordsIn": received,
            "numRecordsOut": emitted,
            "numRecordsInPerSecond": round(job.records_in_per_second(first, subtask), 3),
            "numRecordsOutPerSecond": round(job.records_out_per_second(last, subtask), 3),
            "busyTimeMsPerSecond": round(shares.busy * 1000),
            "idleTimeMsPerSecond": round(shares.idle * 1000),
            "backPressuredTimeMsPerSecond": round(shares.blocked * 1000),
            "isBackPressured": int(shares.blocked > 0.1),
            "accumulateBusyTimeMs": round(task[0] * 1000),
            "accumulateBackPressuredTimeMs": round(task[1] * 1000),
            "inputQueueLength": task[2],
        }
        for name, value in values.items():
            yield Measurement(MetricScope.TASK, name, value, labels, vertex["id"], subtask)
        for operator in vertex["operators"]:
            yield from _of_operator(job, vertex["id"], operator, subtask, labels)
    uids = {operator["uid"] for operator in vertex["operators"]}
    for row in figures.metrics:
        if row["uid"] in uids:
            yield from _of_user(row, vertex, of_vertex)


def _labels(job: JobState) -> dict[str, str]:
    return {"job_id": job.id, "job_name": job.name}


def _of_operator(
    job: JobState, vertex: int, operator: dict[str, Any], subtask: int, of_task: dict[str, str]
) -> Iterator[Measurement]:
    uid = operator["uid"]
    found = None if job.figures is None else job.figures.subtasks.get((uid, subtask))
    if found is None:
        return
    received, emitted, watermark = found
    labels = {**of_task, "operator_id": uid, "operator_name": operator["name"]}
    values: dict[str, float | str] = {
        "numRecordsIn": received,
        "numRecordsOut": emitted,
        "numRecordsInPerSecond": round(job.records_in_per_second(uid, subtask), 3),
        "numRecordsOutPerSecond": round(job.records_out_per_second(uid, subtask), 3),
    }
    if watermark is not None:
        values["currentInputWatermark"] = watermark
    for name, value in values.items():
        yield Measurement(MetricScope.OPERATOR, name, value, labels, vertex, subtask)


def _of_user(
    row: dict[str, Any], vertex: dict[str, Any], of_vertex: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the values of a metric that a function or the engine has added to an operator."""
    variables = row["variables"]
    name = row["name"]
    for key, value in variables.items():
        # The value of a group tells metrics of one name apart, so it is no part of the name.
        name = name.replace(f"{key}.{value}.", f"{key}.", 1)
    of_operator = {**of_vertex, "operator_id": row["uid"], "operator_name": row["operator"]}
    for subtask, value in enumerate(row["subtasks"]):
        labels = {**of_operator, "subtask_index": str(subtask)}
        for suffix, part in _parts(row["kind"], value):
            if part is not None:
                yield Measurement(
                    MetricScope.OPERATOR,
                    name + suffix,
                    part,
                    labels,
                    vertex["id"],
                    subtask,
                    variables,
                )


def _parts(kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a metric, each with the end of its name.

    A meter has its rate, as in Flink, and its count beside it.
    """
    if value is None:
        return
    if kind == "meter":
        yield "", value["rate"]
        yield "_count", value["count"]
    elif kind == "distribution":
        for name in ("count", "sum", "min", "max", "mean"):
            yield f"_{name}", value[name]
    else:
        yield "", value
