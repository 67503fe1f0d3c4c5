"""Sum up the figures of a vertex over its subtasks, of which a job may have thousands."""

from __future__ import annotations

from typing import Any

from penstock.runtime.control.job_state import JobState

_NO_RECORDS = (0, 0, None)
_NO_TIME = (0.0, 0.0, 0)


def vertex_metrics(job: JobState, vertex: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of the figures of a vertex, and of ratios the mean and the maximum."""
    figures = job.figures
    subtasks = range(vertex["parallelism"])
    records = {} if figures is None else figures.subtasks
    times = {} if figures is None else figures.tasks
    id = vertex["id"]
    first, last = vertex["operators"][0]["uid"], vertex["operators"][-1]["uid"]
    minute, recent = job.last_minute(), job.recent()
    before = {} if minute is None else minute[0].subtasks
    per_second = 0.0 if minute is None or minute[2] <= 0 else 1 / minute[2]
    earlier = {} if recent is None else recent[0].tasks
    share = 0.0 if recent is None or recent[2] <= 0 else 1 / recent[2]
    read = written = received = emitted = queued = 0
    busy_seconds = blocked_seconds = 0.0
    busy_sum = blocked_sum = most_busy = most_blocked = 0.0
    least_busy_or_blocked = 1.0
    for subtask in subtasks:
        now, then = records.get((first, subtask)), before.get((first, subtask), _NO_RECORDS)
        if now is not None:
            read += now[0]
            received += max(0, now[0] - then[0])
        now, then = records.get((last, subtask)), before.get((last, subtask), _NO_RECORDS)
        if now is not None:
            written += now[1]
            emitted += max(0, now[1] - then[1])
        task = times.get((id, subtask), _NO_TIME)
        old = earlier.get((id, subtask), _NO_TIME)
        busy_seconds += task[0]
        blocked_seconds += task[1]
        queued += task[2]
        busy = min(1.0, max(0.0, (task[0] - old[0]) * share))
        blocked = min(1.0 - busy, max(0.0, (task[1] - old[1]) * share))
        busy_sum += busy
        blocked_sum += blocked
        most_busy = max(most_busy, busy)
        most_blocked = max(most_blocked, blocked)
        least_busy_or_blocked = min(least_busy_or_blocked, busy + blocked)
    number = len(subtasks) or 1
    return {
        "read-records": read,
        "write-records": written,
        "read-records-per-second": round(received * per_second, 3),
        "write-records-per-second": round(emitted * per_second, 3),
        "accumulated-busy-time": round(busy_seconds * 1000),
        "accumulated-backpressured-time": round(blocked_seconds * 1000),
        "busy-ratio": round(busy_sum / number, 4),
        "max-busy-ratio": round(most_busy, 4),
        "idle-ratio": round(max(0.0, 1 - (busy_sum + blocked_sum) / number), 4),
        "max-idle-ratio": round(max(0.0, 1 - least_busy_or_blocked), 4),
        "backpressured-ratio": round(blocked_sum / number, 4),
        "max-backpressured-ratio": round(most_blocked, 4),
        "queued-elements": queued,
    }
