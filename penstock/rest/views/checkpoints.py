"""Show the snapshots of a job. Flink calls all of them checkpoints."""

from __future__ import annotations

from typing import Any

from penstock.rest.json_schema import (
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
from penstock.rest.operations import RefusedRequest
from penstock.runtime.control.job_state import JobState, SnapshotRecord, SnapshotRequest

_SUMMARY = ("min", "max", "avg")


def checkpoints(job: JobState) -> dict[str, Any]:
    """Return the counts, the sums and the history of a job's snapshots, newest first."""
    records = list(job.snapshots)
    pending = sum(record.status == "IN_PROGRESS" for record in records)
    done = [record.figures for record in records if record.figures is not None]
    return {
        "counts": {
            "restored": job.restored,
            "total": job.completed + job.failed + pending,
            "in_progress": pending,
            "completed": job.completed,
            "failed": job.failed,
        },
        "summary": {
            "checkpointed_size": _statistics([one["bytes_new"] for one in done]),
            "state_size": _statistics([one["bytes_total"] for one in done]),
            "end_to_end_duration": _statistics([one["duration_ms"] for one in done]),
            "alignment": _statistics([one["aligned_ms"] for one in done]),
            "persisted_data": _statistics([one["log_bytes"] for one in done]),
        },
        "latest": {
            "completed": _latest(job, "completed"),
            "savepoint": _latest(job, "savepoint"),
            "failed": _latest(job, "failed"),
            "restored": _restored(job),
        },
        "history": [_entry(job, record) for record in reversed(records)],
    }


def checkpoint(job: JobState, number: int) -> dict[str, Any]:
    """Return a snapshot with a summary of each vertex.

    Raises:
        RefusedRequest: if the snapshot is not known.
    """
    found = _found(job, number)
    rows: dict[int, list[list[Any]]] = {}
    for row in found.tasks:
        rows.setdefault(row[0], []).append(row)
    tasks = {
        str(vertex["id"]): _vertex_summary(found, vertex, rows[vertex["id"]])
        for vertex in job.graph["vertices"]
        if vertex["id"] in rows
    }
    return {**_entry(job, found), "tasks": tasks}


def checkpoint_subtasks(job: JobState, number: int, vertex: dict[str, Any]) -> dict[str, Any]:
    """Return how each task of a vertex took part in a snapshot.

    Raises:
        RefusedRequest: if the snapshot is not known.
    """
    found = _found(job, number)
    rows = sorted(row for row in found.tasks if row[0] == vertex["id"])
    summary = _vertex_summary(found, vertex, rows)
    return {**summary, "subtasks": [_task(found, row) for row in rows]}


def checkpoint_config(job: JobState) -> dict[str, Any]:
    """Return the settings of a job's snapshots."""
    settings = job.config
    interval = settings.get("checkpoint_interval_seconds")
    unaligned = settings.get("checkpointing_mode") == "unaligned"
    return {
        "mode": str(settings.get("checkpointing_mode", "exactly_once")),
        "interval": None if interval is None else round(interval * 1000),
        "timeout": _ms(settings.get("checkpoint_timeout_seconds")),
        "min_pause": _ms(settings.get("min_pause_seconds")),
        "max_concurrent": 1,
        "tolerable_failed_checkpoints": settings.get("tolerable_failures", 0),
        "unaligned_checkpoints": unaligned,
        "aligned_checkpoint_timeout": _ms(settings.get("aligned_checkpoint_timeout_seconds")),
        "checkpoint_storage": settings.get("checkpoint_dir"),
        "externalization": {
            "enabled": settings.get("checkpoint_dir") is not None,
            "delete_on_cancellation": settings.get("retention") == "delete_on_cancellation",
        },
    }


def snapshot_request(request: SnapshotRequest) -> dict[str, Any]:
    """Return how far a request for a savepoint or a stop is."""
    shown: dict[str, Any] = {"status": {"id": "COMPLETED" if request.done else "IN_PROGRESS"}}
    if request.location is not None:
        shown["operation"] = {"location": request.location}
    elif request.failure is not None:
        cause = {"class": "StoreError", "stack-trace": request.failure}
        shown["operation"] = {"failure-cause": cause}
    return shown


def _ms(seconds: float | None) -> int:
    # An infinite timeout, of a job that runs in the process of its program, has no number in JSON.
    return -1 if seconds is None or seconds > 1e12 else round(seconds * 1000)


def _found(job: JobState, number: int) -> SnapshotRecord:
    found = job.snapshot(number)
    if found is None:
        raise RefusedRequest(
            404,
            f"snapshot {number} of job {job.id} is not known here; the last "
            f"{job.snapshots.maxlen} are, and `penstock snapshots list` shows all in the folder",
        )
    return found


def _statistics(values: list[float]) -> dict[str, Any]:
    if not values:
        return dict.fromkeys(_SUMMARY, 0)
    return {"min": min(values), "max": max(values), "avg": round(sum(values) / len(values), 3)}


def _latest(job: JobState, kind: str) -> dict[str, Any] | None:
    found = job.latest.get(kind)
    return None if found is None else _entry(job, found)


def _restored(job: JobState) -> dict[str, Any] | None:
    if job.resumed is None:
        return None
    number, time_ms = job.resumed
    return {"id": number, "restore_timestamp": time_ms, "external_path": job.location(number)}


def _entry(job: JobState, found: SnapshotRecord) -> dict[str, Any]:
    figures = found.figures or {}
    acknowledged = len(found.tasks)
    tasks = sum(vertex["parallelism"] for vertex in job.graph["vertices"])
    last = found.acknowledged_ms
    done = found.figures is not None
    return {
        "id": found.number,
        "status": found.status,
        "is_savepoint": found.kind != "checkpoint",
        "checkpoint_type": found.kind.upper(),
        "trigger_timestamp": found.created_ms,
        "latest_ack_timestamp": None if last is None else round(found.created_ms + last),
        "checkpointed_size": figures.get("bytes_new", 0),
        "state_size": figures.get("bytes_total", 0),
        "end_to_end_duration": figures.get("duration_ms", 0),
        "alignment": figures.get("aligned_ms", 0),
        "persisted_data": figures.get("log_bytes", 0),
        "persisted_records": figures.get("log_records", 0),
        "num_subtasks": max(tasks, acknowledged),
        "num_acknowledged_subtasks": acknowledged,
        "external_path": job.location(found.number) if done else None,
        "failure_message": found.failure,
        "failure_timestamp": found.failed_ms,
    }


def _vertex_summary(
    found: SnapshotRecord, vertex: dict[str, Any], rows: list[list[Any]]
) -> dict[str, Any]:
    last = max((row[2] for row in rows), default=None)
    return {
        "id": str(vertex["id"]),
        "status": found.status,
        "latest_ack_timestamp": None if last is None else round(found.created_ms + last),
        "checkpointed_size": sum(row[5] for row in rows),
        "state_size": sum(row[6] for row in rows),
        "end_to_end_duration": last or 0,
        "num_subtasks": max(vertex["parallelism"], len(rows)),
        "num_acknowledged_subtasks": len(rows),
    }


def _task(found: SnapshotRecord, row: list[Any]) -> dict[str, Any]:
    _, subtask, acknowledged, aligned, written, new, total, records, *more = row
    captured = more[0] if more else 0.0  # a job that was started by an older version has no figure
    return {
        "index": subtask,
        "status": "completed",
        "ack_timestamp": round(found.created_ms + acknowledged),
        "end_to_end_duration": acknowledged,
        "checkpointed_size": new,
        "state_size": total,
        "checkpoint": {"sync": captured, "async": written},
        "alignment": {"duration": aligned, "persisted_records": records},
        # The way of the barrier to the task. The way of the acknowledgement is short.
        "start_delay": round(max(0.0, acknowledged - aligned - captured - written), 3),
    }


_STATUS: Schema = {"type": "string", "enum": ["IN_PROGRESS", "COMPLETED", "FAILED"]}
_STATISTICS = record(dict.fromkeys(_SUMMARY, NUMBER))
_MS = described(NUMBER, "milliseconds")
_TIME = described(nullable(INTEGER), "milliseconds since the epoch")
_ENTRY: dict[str, Schema] = {
    "id": INTEGER,
    "status": _STATUS,
    "is_savepoint": BOOLEAN,
    "checkpoint_type": STRING,
    "trigger_timestamp": _TIME,
    "latest_ack_timestamp": _TIME,
    "checkpointed_size": described(INTEGER, "bytes that were newly written"),
    "state_size": described(INTEGER, "all bytes"),
    "end_to_end_duration": _MS,
    "alignment": described(NUMBER, "the longest alignment of a task, in milliseconds"),
    "persisted_data": described(INTEGER, "bytes of records in flight"),
    "persisted_records": INTEGER,
    "num_subtasks": INTEGER,
    "num_acknowledged_subtasks": INTEGER,
    "external_path": nullable(STRING),
    "failure_message": nullable(STRING),
    "failure_timestamp": _TIME,
}
_OF_VERTEX: dict[str, Schema] = {
    "id": STRING,
    "status": _STATUS,
    "latest_ack_timestamp": _TIME,
    "checkpointed_size": INTEGER,
    "state_size": INTEGER,
    "end_to_end_duration": _MS,
    "num_subtasks": INTEGER,
    "num_acknowledged_subtasks": INTEGER,
}

SCHEMAS: dict[str, Schema] = {
    "Checkpoint": record(_ENTRY),
    "CheckpointedVertex": record(_OF_VERTEX),
    "Checkpoints": record(
        {
            "counts": record(
                {
                    "restored": INTEGER,
                    "total": INTEGER,
                    "in_progress": INTEGER,
                    "completed": INTEGER,
                    "failed": INTEGER,
                }
            ),
            "summary": record(
                {
                    "checkpointed_size": _STATISTICS,
                    "state_size": _STATISTICS,
                    "end_to_end_duration": _STATISTICS,
                    "alignment": _STATISTICS,
                    "persisted_data": _STATISTICS,
                }
            ),
            "latest": record(
                {
                    "completed": nullable(ref("Checkpoint")),
                    "savepoint": nullable(ref("Checkpoint")),
                    "failed": nullable(ref("Checkpoint")),
                    "restored": nullable(
                        record(
                            {
                                "id": INTEGER,
                                "restore_timestamp": INTEGER,
                                "external_path": nullable(STRING),
                            }
                        )
                    ),
                }
            ),
            "history": array(ref("Checkpoint")),
        }
    ),
    "CheckpointDetails": record({**_ENTRY, "tasks": mapping(ref("CheckpointedVertex"))}),
    "CheckpointSubtasks": record(
        {
            **_OF_VERTEX,
            "subtasks": array(
                record(
                    {
                        "index": INTEGER,
                        "status": STRING,
                        "ack_timestamp": INTEGER,
                        "end_to_end_duration": _MS,
                        "checkpointed_size": INTEGER,
                        "state_size": INTEGER,
                        "checkpoint": record(
                            {
                                "sync": described(_MS, "time of the capture"),
                                "async": described(_MS, "time of the write"),
                            }
                        ),
                        "alignment": record({"duration": _MS, "persisted_records": INTEGER}),
                        "start_delay": described(
                            NUMBER, "milliseconds until the first barrier has come"
                        ),
                    }
                )
            ),
        }
    ),
    "CheckpointConfig": record(
        {
            "mode": STRING,
            "interval": described(nullable(INTEGER), "milliseconds; null if there is none"),
            "timeout": INTEGER,
            "min_pause": INTEGER,
            "max_concurrent": INTEGER,
            "tolerable_failed_checkpoints": INTEGER,
            "unaligned_checkpoints": BOOLEAN,
            "aligned_checkpoint_timeout": INTEGER,
            "checkpoint_storage": nullable(STRING),
            "externalization": record({"enabled": BOOLEAN, "delete_on_cancellation": BOOLEAN}),
        }
    ),
    "Trigger": record({"request-id": STRING}),
    "SnapshotRequest": record(
        {"status": record({"id": {"type": "string", "enum": ["IN_PROGRESS", "COMPLETED"]}})},
        {
            "operation": {
                "anyOf": [
                    record({"location": STRING}),
                    record({"failure-cause": record({"class": STRING, "stack-trace": STRING})}),
                ]
            }
        },
    ),
}
