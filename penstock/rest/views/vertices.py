"""Show one vertex of a job: its subtasks, its backpressure and its watermarks."""

from __future__ import annotations

from typing import Any

from penstock.rest.json_schema import INTEGER, NUMBER, STRING, Schema, array, record, ref
from penstock.rest.operations import RefusedRequest
from penstock.rest.views.jobs import SUBTASK_METRICS, subtask_metrics, task_status
from penstock.runtime.control.job_state import JobState

#: The shares of blocked time from which on backpressure is low and high; Flink's.
LOW, HIGH = 0.1, 0.5


def find_vertex(job: JobState, number: int) -> dict[str, Any]:
    """Return the vertex of a job with a number.

    Raises:
        RefusedRequest: if there is no such vertex.
    """
    vertices: list[dict[str, Any]] = job.graph["vertices"]
    if number >= len(vertices):
        raise RefusedRequest(404, f"job {job.id} has no vertex {number}; it has {len(vertices)}")
    return vertices[number]


def vertex(job: JobState, vertex: dict[str, Any]) -> dict[str, Any]:
    """Return a vertex with its subtasks."""
    now = job.now_ms()
    subtasks = [
        {
            "subtask": subtask,
            "status": task_status(job),
            "attempt": job.attempt,
            "start-time": job.started_ms,
            "end-time": -1 if job.ended_ms is None else job.ended_ms,
            "duration": (job.ended_ms or now) - job.started_ms,
            "metrics": subtask_metrics(job, vertex, subtask),
        }
        for subtask in range(vertex["parallelism"])
    ]
    return {
        "id": str(vertex["id"]),
        "name": vertex["name"],
        "parallelism": vertex["parallelism"],
        "maxParallelism": job.graph["max_parallelism"],
        "now": now,
        "subtasks": subtasks,
    }


def backpressure(job: JobState, vertex: dict[str, Any]) -> dict[str, Any]:
    """Return how much of their time the tasks of a vertex are blocked by later ones."""
    rows: list[dict[str, Any]] = []
    for subtask in range(vertex["parallelism"]):
        shares = job.shares(vertex["id"], subtask)
        rows.append(
            {
                "subtask": subtask,
                "attempt-number": job.attempt,
                "backpressureLevel": _level(shares.blocked),
                "ratio": round(shares.blocked, 4),
                "idleRatio": round(shares.idle, 4),
                "busyRatio": round(shares.busy, 4),
            }
        )
    return {
        "status": "deprecated" if job.figures is None else "ok",
        "backpressureLevel": _level(max((row["ratio"] for row in rows), default=0.0)),
        "end-timestamp": job.now_ms(),
        "subtasks": rows,
    }


def _level(ratio: float) -> str:
    if ratio <= LOW:
        return "ok"
    return "low" if ratio <= HIGH else "high"


def watermarks(job: JobState, vertex: dict[str, Any]) -> list[dict[str, str]]:
    """Return the watermark of each subtask of a vertex that has one."""
    subtasks = {} if job.figures is None else job.figures.subtasks
    uid = vertex["operators"][-1]["uid"]
    rows = []
    for subtask in range(vertex["parallelism"]):
        watermark = subtasks.get((uid, subtask), (0, 0, None))[2]
        if watermark is not None:
            rows.append({"id": f"{subtask}.currentInputWatermark", "value": str(watermark)})
    return rows


_LEVEL: Schema = {"type": "string", "enum": ["ok", "low", "high"]}

SCHEMAS: dict[str, Schema] = {
    "SubtaskMetrics": record(SUBTASK_METRICS),
    "VertexDetails": record(
        {
            "id": STRING,
            "name": STRING,
            "parallelism": INTEGER,
            "maxParallelism": INTEGER,
            "now": INTEGER,
            "subtasks": array(
                record(
                    {
                        "subtask": INTEGER,
                        "status": STRING,
                        "attempt": INTEGER,
                        "start-time": INTEGER,
                        "end-time": INTEGER,
                        "duration": INTEGER,
                        "metrics": ref("SubtaskMetrics"),
                    }
                )
            ),
        }
    ),
    "Backpressure": record(
        {
            "status": {
                "type": "string",
                "enum": ["ok", "deprecated"],
                "description": "`deprecated`, Flink's word, before the first figures have come",
            },
            "backpressureLevel": _LEVEL,
            "end-timestamp": INTEGER,
            "subtasks": array(
                record(
                    {
                        "subtask": INTEGER,
                        "attempt-number": INTEGER,
                        "backpressureLevel": _LEVEL,
                        "ratio": NUMBER,
                        "idleRatio": NUMBER,
                        "busyRatio": NUMBER,
                    }
                )
            ),
        }
    ),
    "Watermarks": array(record({"id": STRING, "value": STRING})),
}
