"""Read what is recorded about a job: its details and its log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from penstock.runtime.control.requests import Logs, UnknownJob
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.dispatcher.state_folder import StateFolder

#: The number of bytes that are read from a log at once.
LOG_BYTES = 1 << 16
#: The interval at which a followed log is read, in seconds.
LOG_SECONDS = 0.2
#: The number of the last snapshots and failures in the details of a job.
DETAILS = 60


@dataclass(frozen=True)
class JobDetails:
    """All facts about one job.

    Arguments:
        job: the record of the job.
        figures: the newest figures of the running job, as in a `JobFigures`: `operators`, `loops`,
            `metrics` and `busy_workers`. It is empty if the job does not run.
        snapshots: the figures of the last complete snapshots, oldest first.
        failures: the events "restarting" and "failed" of the last failures, oldest first.
    """

    job: JobRecord
    figures: dict[str, Any]
    snapshots: list[dict[str, Any]]
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class JobActivity:
    """The newest figures of a running job, without those of single subtasks.

    Arguments:
        time: the time of the figures, in seconds since the epoch; 0 if there are none.
        operators: the figures of each operator, as in a `JobFigures`.
        snapshot: the newest snapshot since the service runs: its `number`, `kind`, `duration_ms`,
            `bytes_total`, and the `time` of its end; None if there is none.
    """

    time: float
    operators: list[dict[str, Any]]
    snapshot: dict[str, Any] | None


@dataclass(frozen=True)
class SnapshotTaken:
    """A savepoint, or the final snapshot of a job that was stopped.

    Arguments:
        job: the record of the job.
        number: the number of the snapshot.
        path: the path of the snapshot, from which a job can be resumed.
    """

    job: JobRecord
    number: int
    path: str


def recorded_details(folder: StateFolder, id: str) -> JobDetails:
    """Return what the last service of a folder has recorded about a job.

    Raise `UnknownJob` if there is no such job, or `OSError` if the records cannot be read.
    """
    registry = JobRegistry(folder.jobs)
    registry.load()
    record = registry.get(id)
    if record is None:
        raise UnknownJob(f"there is no job {id}; see penstock list")
    return details_of(registry, record, {})


def details_of(registry: JobRegistry, record: JobRecord, figures: dict[str, Any]) -> JobDetails:
    """Return all facts about a job.

    Arguments:
        registry: has the events of the job.
        record: the record of the job.
        figures: the newest figures of the running job; empty if it does not run.
    """
    events = registry.journal(record.id).read()
    snapshots = [event for event in events if event["event"] == "snapshot"]
    failures = [event for event in events if event["event"] in ("restarting", "failed")]
    return JobDetails(record, figures, snapshots[-DETAILS:], failures[-DETAILS:])


async def log_parts(
    path: Path, request: Logs, ended: trio.Event | None
) -> AsyncGenerator[bytes, None]:
    """Yield a log in parts, which follow each other.

    Arguments:
        path: the file.
        request: says where to begin, and whether to wait for more.
        ended: is set when the job has ended; None if it has.
    """
    position, size = await trio.to_thread.run_sync(span_of, path, request.offset)
    # Without `follow`, a log that grows fast must have an end as well.
    end = None if request.follow else max(position, size)
    while True:
        last = ended is None or ended.is_set()
        part = await trio.to_thread.run_sync(read_part, path, position, end)
        position += len(part)
        if part:
            yield part
        elif last or not request.follow:
            return
        else:
            await trio.sleep(LOG_SECONDS)


def span_of(path: Path, offset: int) -> tuple[int, int]:
    """Return the positions in a file at which a reader begins, and at which the file ends now.

    Arguments:
        path: the file.
        offset: the number of bytes to skip; below 0, the number of last lines to read.
    """
    try:
        size = path.stat().st_size
        if offset >= 0:
            return offset, size
        begin = max(0, size - (1 << 20))
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return 0, 0
    lines = data.splitlines(keepends=True)
    return size - sum(map(len, lines[offset:])), size


def read_part(path: Path, position: int, end: int | None) -> bytes:
    """Return bytes of a file from a position on; no bytes at its end, or if it cannot be read.

    Arguments:
        path: the file.
        position: where to begin.
        end: where to end; None reads what has come meanwhile, too.
    """
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(LOG_BYTES if end is None else min(LOG_BYTES, end - position))
    except OSError:
        return b""
