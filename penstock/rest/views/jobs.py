"""Show jobs: their list, one job, its graph, its settings and its failures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.dataflow.job_client import JobStatus
from penstock.rest.json_schema import (
    ANYTHING,
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    described,
    mapping,
    nullable,
    record,
    ref,
)
from penstock.rest.views.vertex_sums import vertex_metrics
from penstock.runtime.control.job_state import FailureRecord, JobState, ShadowRequest
from penstock.version import VERSION

#: The states of tasks that Flink counts.
_TASK_STATES = (
    "created",
    "scheduled",
    "deploying",
    "running",
    "finished",
    "canceling",
    "canceled",
    "failed",
    "reconciling",
    "initializing",
)
_OF_JOB = {
    JobStatus.RUNNING: "running",
    JobStatus.FINISHED: "finished",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELED: "canceled",
    JobStatus.CANCELLING: "canceling",
    JobStatus.RESTARTING: "scheduled",
    JobStatus.INITIALIZING: "deploying",
}
JOB_STATUS: Schema = {"type": "string", "enum": [status.name for status in JobStatus]}
_MILLISECONDS = described(INTEGER, "milliseconds since the epoch; -1 if it is not known")
_COUNTS = dict.fromkeys(_TASK_STATES, INTEGER)


def overview(jobs: Iterable[JobState], slots: int, free: int) -> dict[str, Any]:
    """Return how many jobs, workers and slots there are.

    Arguments:
        jobs: all jobs.
        slots: the number of slots; 0 if it is not limited.
        free: the number of slots that no job takes.
    """
    jobs = list(jobs)
    active = [job for job in jobs if not job.ended]
    used = sum(len(job.worker_pids) for job in active)
    count = {status: sum(job.status is status for job in jobs) for status in JobStatus}
    return {
        "taskmanagers": used,
        "slots-total": max(slots, used),
        "slots-available": free,
        "jobs-running": len(active),
        "jobs-finished": count[JobStatus.FINISHED],
        "jobs-cancelled": count[JobStatus.CANCELED],
        "jobs-failed": count[JobStatus.FAILED],
        "penstock-version": VERSION,
    }


def server(may_order: bool, takes_jobs: bool) -> dict[str, Any]:
    """Return what a server and the token of a request allow.

    Arguments:
        may_order: whether the token allows orders.
        takes_jobs: whether the server submits, rescales and restarts jobs.
    """
    return {
        "penstock-version": VERSION,
        "features": {
            "web-submit": may_order and takes_jobs,
            "web-cancel": may_order,
            "web-rescale": may_order and takes_jobs,
        },
    }


def job_ids(jobs: Iterable[JobState]) -> dict[str, Any]:
    """Return the id and the status of each job."""
    return {"jobs": [{"id": job.id, "status": job.status.name} for job in jobs]}


def jobs_overview(jobs: Iterable[JobState]) -> dict[str, Any]:
    """Return a summary of each job."""
    return {"jobs": [_summary(job) for job in jobs]}


def job(job: JobState) -> dict[str, Any]:
    """Return one job with its vertices."""
    now = job.now_ms()
    status = {status.name: job.since_ms.get(status, 0) for status in JobStatus}
    return {
        "jid": job.id,
        "name": job.name,
        "isStoppable": not job.ended,
        "state": job.status.name,
        "start-time": job.started_ms,
        "end-time": -1 if job.ended_ms is None else job.ended_ms,
        "duration": (job.ended_ms or now) - job.started_ms,
        "maxParallelism": job.graph["max_parallelism"],
        "now": now,
        "timestamps": status,
        "vertices": [vertex_summary(job, vertex) for vertex in job.graph["vertices"]],
        "status-counts": _task_counts(job, len(job.graph["vertices"])),
        "plan": _plan(job),
        "attempt": job.attempt,
        "restarts": job.restarts,
        "pid": job.pid,
        "worker-pids": job.worker_pids,
        "slots": job.slots or len(job.worker_pids),
    }


def shadow_request(request: ShadowRequest) -> dict[str, Any]:
    """Return how far a shadow run is, and its report."""
    shown: dict[str, Any] = {"status": {"id": "COMPLETED" if request.done else "IN_PROGRESS"}}
    if request.report is not None:
        shown["report"] = request.report
    elif request.failure is not None:
        shown["failure"] = request.failure
    return shown


def plan(job: JobState) -> dict[str, Any]:
    """Return the graph of a job."""
    return {"plan": _plan(job)}


def status(job: JobState) -> dict[str, Any]:
    """Return the status of a job."""
    return {"status": job.status.name}


def config(job: JobState) -> dict[str, Any]:
    """Return the settings of a job: a summary under Flink's names, and all of Penstock's."""
    settings = job.config
    restart = settings.get("restart")
    return {
        "jid": job.id,
        "name": job.name,
        "execution-config": {
            "execution-mode": settings.get("runtime_mode", "streaming").upper(),
            "restart-strategy": "default" if restart is None else restart["kind"],
            "job-parallelism": settings.get("parallelism", 1),
            "object-reuse-mode": False,
            "user-config": dict.fromkeys(settings.get("job_parameters", ()), "***"),
        },
        "settings": settings,
    }


def exceptions(job: JobState) -> dict[str, Any]:
    """Return the failures of a job, newest first."""
    entries = [_failure(failure) for failure in reversed(job.failures)]
    failures = job.restarts + (job.status is JobStatus.FAILED)
    return {"exceptionHistory": {"entries": entries, "truncated": failures > len(entries)}}


def _failure(failure: FailureRecord) -> dict[str, Any]:
    error = failure.error
    return {
        "exceptionName": error["family"],
        "message": error["message"],
        "stacktrace": error.get("user_traceback") or error["message"],
        "timestamp": failure.time_ms,
        "taskName": error.get("operator"),
        "record": error.get("record"),
        "attempt": failure.attempt,
        "region": failure.region,
    }


def _summary(job: JobState) -> dict[str, Any]:
    now = job.now_ms()
    tasks = sum(vertex["parallelism"] for vertex in job.graph["vertices"])
    return {
        "jid": job.id,
        "name": job.name,
        "state": job.status.name,
        "start-time": job.started_ms,
        "end-time": -1 if job.ended_ms is None else job.ended_ms,
        "duration": (job.ended_ms or now) - job.started_ms,
        "last-modification": max(job.since_ms.values()),
        "tasks": {"total": tasks, **_task_counts(job, tasks)},
        "restarts": job.restarts,
    }


def _task_counts(job: JobState, number: int) -> dict[str, int]:
    """Return the number of tasks in each state: all are in that of the job."""
    counts = dict.fromkeys(_TASK_STATES, 0)
    counts[_OF_JOB.get(job.status, "created")] = number
    return counts


def task_status(job: JobState) -> str:
    """Return the state of the job's tasks, under Flink's name."""
    return _OF_JOB.get(job.status, "created").upper()


def vertex_summary(job: JobState, vertex: dict[str, Any]) -> dict[str, Any]:
    """Return a vertex of a job with its sums over the subtasks."""
    return {
        "id": str(vertex["id"]),
        "name": vertex["name"],
        "maxParallelism": job.graph["max_parallelism"],
        "parallelism": vertex["parallelism"],
        "status": task_status(job),
        "start-time": job.started_ms,
        "end-time": -1 if job.ended_ms is None else job.ended_ms,
        "duration": (job.ended_ms or job.now_ms()) - job.started_ms,
        "tasks": _task_counts(job, vertex["parallelism"]),
        "metrics": vertex_metrics(job, vertex),
        "operators": vertex["operators"],
    }


def subtask_metrics(job: JobState, vertex: dict[str, Any], subtask: int) -> dict[str, Any]:
    """Return the figures of one task in the current attempt."""
    figures = job.figures
    task = (0.0, 0.0, 0) if figures is None else figures.tasks.get((vertex["id"], subtask))
    busy, blocked, queued = task or (0.0, 0.0, 0)
    subtasks = {} if figures is None else figures.subtasks
    first, last = vertex["operators"][0]["uid"], vertex["operators"][-1]["uid"]
    received = subtasks.get((first, subtask), (0, 0, None))
    emitted = subtasks.get((last, subtask), (0, 0, None))
    shares = job.shares(vertex["id"], subtask)
    return {
        "read-records": received[0],
        "write-records": emitted[1],
        "read-records-per-second": round(job.records_in_per_second(first, subtask), 3),
        "write-records-per-second": round(job.records_out_per_second(last, subtask), 3),
        "accumulated-busy-time": round(busy * 1000),
        "accumulated-backpressured-time": round(blocked * 1000),
        "busy-ratio": round(shares.busy, 4),
        "idle-ratio": round(shares.idle, 4),
        "backpressured-ratio": round(shares.blocked, 4),
        "queued-elements": queued,
    }


def _plan(job: JobState) -> dict[str, Any]:
    inputs: dict[int, list[dict[str, Any]]] = {}
    for number, edge in enumerate(job.graph["edges"]):
        found = inputs.setdefault(edge["target"], [])
        found.append(
            {
                "num": len(found),
                "edge": number,
                "id": str(edge["source"]),
                "ship_strategy": edge["partitioning"].upper(),
                "exchange": "pipelined_bounded",
                "back_edge": edge["back_edge"],
                "producer": edge["producer"],
                "consumer": edge["consumer"],
            }
        )
    nodes = [
        {
            "id": str(vertex["id"]),
            "parallelism": vertex["parallelism"],
            "operator": "",
            "operator_strategy": "",
            "description": vertex["name"],
            "inputs": inputs.get(vertex["id"], []),
            "source": vertex["source"],
            "sink": vertex["sink"],
            "loop": vertex["loop"],
        }
        for vertex in job.graph["vertices"]
    ]
    kind = "BATCH" if job.config.get("runtime_mode") == "batch" else "STREAMING"
    return {"jid": job.id, "name": job.name, "type": kind, "nodes": nodes}


SUBTASK_METRICS: dict[str, Schema] = {
    "read-records": INTEGER,
    "write-records": INTEGER,
    "read-records-per-second": described(NUMBER, "over the last minute"),
    "write-records-per-second": described(NUMBER, "over the last minute"),
    "accumulated-busy-time": described(INTEGER, "milliseconds in this attempt"),
    "accumulated-backpressured-time": described(INTEGER, "milliseconds in this attempt"),
    "busy-ratio": described(NUMBER, "share of the last seconds"),
    "idle-ratio": described(NUMBER, "share of the last seconds"),
    "backpressured-ratio": described(NUMBER, "share of the last seconds"),
    "queued-elements": described(INTEGER, "batches and barriers that wait at the inputs"),
}
_TASK_COUNTS = record(_COUNTS)
_PLAN = record(
    {
        "jid": STRING,
        "name": STRING,
        "type": STRING,
        "nodes": array(
            record(
                {
                    "id": STRING,
                    "parallelism": INTEGER,
                    "operator": STRING,
                    "operator_strategy": STRING,
                    "description": STRING,
                    "source": {"type": "boolean"},
                    "sink": {"type": "boolean"},
                    "loop": described(nullable(INTEGER), "the loop that the vertex is in"),
                    "inputs": array(
                        record(
                            {
                                "num": INTEGER,
                                "edge": described(INTEGER, "its number among all edges"),
                                "id": STRING,
                                "ship_strategy": STRING,
                                "exchange": STRING,
                                "back_edge": {"type": "boolean"},
                                "producer": STRING,
                                "consumer": STRING,
                            }
                        )
                    ),
                }
            )
        ),
    }
)
_VERTEX = record(
    {
        "id": STRING,
        "name": STRING,
        "maxParallelism": INTEGER,
        "parallelism": INTEGER,
        "status": STRING,
        "start-time": _MILLISECONDS,
        "end-time": _MILLISECONDS,
        "duration": INTEGER,
        "tasks": ref("TaskCounts"),
        "metrics": described(
            mapping(NUMBER), "sums over the subtasks; of ratios, the mean and the maximum"
        ),
        "operators": array(
            record({"uid": STRING, "name": STRING, "stateful": {"type": "boolean"}})
        ),
    }
)

SCHEMAS: dict[str, Schema] = {
    "Overview": record(
        {
            "taskmanagers": INTEGER,
            "slots-total": INTEGER,
            "slots-available": INTEGER,
            "jobs-running": INTEGER,
            "jobs-finished": INTEGER,
            "jobs-cancelled": INTEGER,
            "jobs-failed": INTEGER,
            "penstock-version": STRING,
        }
    ),
    "Server": record(
        {
            "penstock-version": STRING,
            "features": record(
                {
                    "web-submit": described(BOOLEAN, "whether jobs can be submitted"),
                    "web-cancel": described(BOOLEAN, "whether jobs can be stopped"),
                    "web-rescale": described(
                        BOOLEAN, "whether jobs can be rescaled and started again"
                    ),
                }
            ),
        }
    ),
    "JobIds": record({"jobs": array(record({"id": STRING, "status": JOB_STATUS}))}),
    "JobsOverview": record(
        {
            "jobs": array(
                record(
                    {
                        "jid": STRING,
                        "name": STRING,
                        "state": JOB_STATUS,
                        "start-time": _MILLISECONDS,
                        "end-time": _MILLISECONDS,
                        "duration": INTEGER,
                        "last-modification": _MILLISECONDS,
                        "tasks": record({"total": INTEGER, **_COUNTS}),
                        "restarts": INTEGER,
                    }
                )
            )
        }
    ),
    "TaskCounts": _TASK_COUNTS,
    "Plan": _PLAN,
    "Vertex": _VERTEX,
    "Job": record(
        {
            "jid": STRING,
            "name": STRING,
            "isStoppable": {"type": "boolean"},
            "state": JOB_STATUS,
            "start-time": _MILLISECONDS,
            "end-time": _MILLISECONDS,
            "duration": INTEGER,
            "maxParallelism": INTEGER,
            "now": _MILLISECONDS,
            "timestamps": record({status.name: INTEGER for status in JobStatus}),
            "vertices": array(ref("Vertex")),
            "status-counts": ref("TaskCounts"),
            "plan": ref("Plan"),
            "attempt": INTEGER,
            "restarts": INTEGER,
            "pid": nullable(INTEGER),
            "worker-pids": array(INTEGER),
            "slots": described(INTEGER, "the number of workers that the job needs"),
        }
    ),
    "ShadowRequest": record(
        {"status": record({"id": {"type": "string", "enum": ["IN_PROGRESS", "COMPLETED"]}})},
        {"report": ref("ShadowReport"), "failure": described(STRING, "why there is no report")},
    ),
    "ShadowReport": record(
        {
            "equal": described(BOOLEAN, "whether both programs have read and written the same"),
            "snapshot": described(INTEGER, "the number of the snapshot from which both started"),
            "snapshots": described(INTEGER, "the number of snapshots that the old program took"),
            "sources": array(
                record(
                    {
                        "uid": STRING,
                        "name": STRING,
                        "old": nullable(INTEGER),
                        "new": nullable(INTEGER),
                    }
                )
            ),
            "sinks": array(
                record(
                    {
                        "uid": STRING,
                        "name": STRING,
                        "old": nullable(INTEGER),
                        "new": nullable(INTEGER),
                        "only_old": INTEGER,
                        "only_new": INTEGER,
                        "first_old": array(STRING),
                        "first_new": array(STRING),
                    }
                )
            ),
        }
    ),
    "JobPlan": record({"plan": ref("Plan")}),
    "JobStatus": record({"status": JOB_STATUS}),
    "JobConfig": record(
        {
            "jid": STRING,
            "name": STRING,
            "execution-config": record(
                {
                    "execution-mode": STRING,
                    "restart-strategy": STRING,
                    "job-parallelism": INTEGER,
                    "object-reuse-mode": {"type": "boolean"},
                    "user-config": described(
                        mapping(STRING), "the names of the job's parameters, without values"
                    ),
                }
            ),
            "settings": described(mapping(ANYTHING), "all settings of the job, by name"),
        }
    ),
    "Exceptions": record(
        {
            "exceptionHistory": record(
                {
                    "entries": array(
                        record(
                            {
                                "exceptionName": STRING,
                                "message": STRING,
                                "stacktrace": STRING,
                                "timestamp": _MILLISECONDS,
                                "taskName": nullable(STRING),
                                "record": nullable(STRING),
                                "attempt": INTEGER,
                                "region": nullable(STRING),
                            }
                        )
                    ),
                    "truncated": {"type": "boolean"},
                }
            )
        }
    ),
}
