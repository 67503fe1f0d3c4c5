"""Show the figures of all subtasks of a job at once, by column: for views that are renewed often.

A job may have thousands of subtasks. So there is one pass over them, and each list has one value
for each subtask.
"""

from __future__ import annotations

from typing import Any

from penstock.rest.json_schema import INTEGER, NUMBER, STRING, Schema, array, described, nullable
from penstock.rest.json_schema import record as schema_of
from penstock.rest.views.jobs import JOB_STATUS
from penstock.runtime.control.job_state import Figures, JobState

_NO_RECORDS = (0, 0, None)
_NO_TIME = (0.0, 0.0, 0)


def figures(job: JobState) -> dict[str, Any]:
    """Return the figures of a job: rates and shares are those of the last seconds."""
    recent = job.recent()
    now = job.now_ms()
    pending = sum(one.status == "IN_PROGRESS" for one in job.snapshots)
    return {
        "now": now,
        "state": job.status.name,
        "duration": (job.ended_ms or now) - job.started_ms,
        "attempt": job.attempt,
        "restarts": job.restarts,
        "pid": job.pid,
        "snapshots": [job.completed, job.failed, pending],
        "vertices": [
            _vertex(vertex, recent) if recent is not None else _unknown(vertex)
            for vertex in job.graph["vertices"]
        ],
    }


def _unknown(vertex: dict[str, Any]) -> dict[str, Any]:
    """Return a vertex of a job that has not reported figures, or has ended."""
    number = vertex["parallelism"]
    return {
        "id": str(vertex["id"]),
        "records-in": [0] * number,
        "records-out": [0] * number,
        "busy": [0] * number,
        "blocked": [0] * number,
        "queued": [0] * number,
        "watermarks": [None] * number,
        "operators": [[0, 0] for _ in vertex["operators"]],
    }


def _vertex(vertex: dict[str, Any], recent: tuple[Figures, Figures, float]) -> dict[str, Any]:
    before, newest, seconds = recent
    # The first figures of an attempt have none before them, so their rates are 0.
    per_second = 1 / seconds if seconds > 0 else 0.0
    id, operators = vertex["id"], vertex["operators"]
    subtasks = range(vertex["parallelism"])
    now_of, then_of = newest.subtasks.get, before.subtasks.get
    columns: list[tuple[list[float], list[float]]] = []
    watermarks: list[int | None] = []
    for operator in operators:
        uid = operator["uid"]
        received: list[float] = []
        emitted: list[float] = []
        watermarks = []
        for subtask in subtasks:
            key = (uid, subtask)
            now, then = now_of(key, _NO_RECORDS), then_of(key, _NO_RECORDS)
            # The counters of a task that has restarted begin again, so a rate can be below 0.
            rate = (now[0] - then[0]) * per_second
            received.append(int(rate) if rate >= 10 else round(rate, 2) if rate > 0 else 0)
            rate = (now[1] - then[1]) * per_second
            emitted.append(int(rate) if rate >= 10 else round(rate, 2) if rate > 0 else 0)
            watermarks.append(now[2])
        columns.append((received, emitted))
    busy: list[float] = []
    blocked: list[float] = []
    queued: list[int] = []
    for subtask in subtasks:
        task_key = (id, subtask)
        task = newest.tasks.get(task_key, _NO_TIME)
        earlier = before.tasks.get(task_key, _NO_TIME)
        share = (task[0] - earlier[0]) * per_second
        busy.append(int(share * 1000) / 1000 if 0 < share < 1 else int(share >= 1))
        share = (task[1] - earlier[1]) * per_second
        blocked.append(int(share * 1000) / 1000 if 0 < share < 1 else int(share >= 1))
        queued.append(task[2])
    return {
        "id": str(id),
        "records-in": columns[0][0],
        "records-out": columns[-1][1],
        "busy": busy,
        "blocked": blocked,
        "queued": queued,
        "watermarks": watermarks,
        "operators": [[round(sum(one), 2) for one in column] for column in columns],
    }


def flamegraph(job: JobState) -> dict[str, Any]:
    """Return the newest call stacks of each worker."""
    return {
        "workers": [
            {
                "worker": worker,
                "pid": profile["pid"],
                "end-timestamp": profile["time_ms"],
                "samples": profile["samples"],
                "frames": profile["frames"],
                "stacks": profile["stacks"],
            }
            for worker, profile in sorted(job.profiles.items())
        ]
    }


_FOR_EACH = "for each subtask"
SCHEMAS: dict[str, Schema] = {
    "Flamegraph": schema_of(
        {
            "workers": array(
                schema_of(
                    {
                        "worker": INTEGER,
                        "pid": INTEGER,
                        "end-timestamp": described(INTEGER, "milliseconds since the epoch"),
                        "samples": described(INTEGER, "how often all threads were looked at"),
                        "frames": described(
                            array(STRING), "names of threads, and functions with file and line"
                        ),
                        "stacks": described(
                            array(array(INTEGER)),
                            "the count of each stack, and then its frames by their place in "
                            "`frames`, from the outermost one",
                        ),
                    }
                )
            )
        }
    ),
    "Figures": schema_of(
        {
            "now": described(INTEGER, "milliseconds since the epoch"),
            "state": JOB_STATUS,
            "duration": described(INTEGER, "milliseconds"),
            "attempt": INTEGER,
            "restarts": INTEGER,
            "pid": nullable(INTEGER),
            "snapshots": described(
                array(INTEGER), "how many are complete, have failed, and are in progress"
            ),
            "vertices": array(
                schema_of(
                    {
                        "id": STRING,
                        "records-in": described(array(NUMBER), f"per second, {_FOR_EACH}"),
                        "records-out": described(array(NUMBER), f"per second, {_FOR_EACH}"),
                        "busy": described(array(NUMBER), f"share of the time, {_FOR_EACH}"),
                        "blocked": described(array(NUMBER), f"share of the time, {_FOR_EACH}"),
                        "queued": described(
                            array(INTEGER), f"batches and barriers at the inputs, {_FOR_EACH}"
                        ),
                        "watermarks": described(
                            array(nullable(INTEGER)),
                            f"milliseconds since the epoch, {_FOR_EACH}; null if it has none",
                        ),
                        "operators": described(
                            array(array(NUMBER)),
                            "records in and out per second of each operator, over all subtasks",
                        ),
                    }
                )
            ),
        }
    ),
}
