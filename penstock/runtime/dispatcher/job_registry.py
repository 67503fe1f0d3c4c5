"""Keep the records of the jobs of a job service, in memory and on disk."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import BinaryIO

from penstock.runtime.control.event_journal import EventJournal
from penstock.runtime.control.requests import Conflict
from penstock.runtime.system.private_files import open_private, read_private, replace_private
from penstock.runtime.system.unix_sockets import MAX_SOCKET_PATH

#: The maximum number of ended jobs whose records and logs are kept.
KEPT_JOBS = 100
#: The error of a job without a checkpoint folder whose JobManager died while no service ran.
LOST = (
    "its JobManager died while no job manager service ran, and the job has no checkpoint folder "
    "to go on from"
)
#: The states of jobs that have not ended.
ACTIVE = ("queued", "running")


@dataclass
class JobRecord:
    """The facts about one job that the job service keeps.

    Arguments:
        id: the number of the job, as text.
        name: the name of the job.
        state: "queued", "running", "finished", "stopped", "failed", "killed" (a signal has killed
            its JobManager) or "lost" (its JobManager died while no service ran, and the job has no
            checkpoint folder).
        wanted: what the users of the service want of the job: "run", "stop" or "kill". A job of
            which "run" is wanted goes on when the service starts, unless it has finished or failed.
        waiting: the reason for which a queued job waits; empty for other jobs.
        submitted, started, ended: the times of the submission, of the first start and of the end,
            in seconds since the epoch. `started` is 0 if the job has not started, and `ended` is
            None if it has not ended.
        pid: the process id of its JobManager.
        worker_pids: the process ids of its workers.
        restarts: the number of restarts so far.
        last_snapshot: the number of the newest complete snapshot, or None.
        folder: the working directory of the JobManager.
        checkpoint_dir: the job's checkpoint folder, as an absolute path; empty if it has none.
        log: the path of the file with the job's standard output and error.
        error: the failure that ended the job, or how the job was killed. While the job runs, it is
            the cause of the last restart.
        parallelism, max_parallelism: the parallelism of the job, and the upper limit for it.
        slots: the number of its workers.
        slot_counts, restart_scope: as in `Submit`.
        memory_bytes: the memory that is kept free for the job; 0 if the submission set none.
        lineage: the lineage of the snapshots that the job takes; empty before the first one.
        sequence: the `seq` of the last event that this record takes into account.
        address: the address of the socket on which its JobManager listens for the service.
        python: the version of Python with which the job was submitted.
    """

    id: str
    name: str
    state: str = "running"
    started: float = 0.0
    ended: float | None = None
    pid: int | None = None
    worker_pids: list[int] = field(default_factory=list)
    restarts: int = 0
    last_snapshot: int | None = None
    folder: str = ""
    log: str = ""
    error: str | None = None
    checkpoint_dir: str = ""
    wanted: str = "run"
    waiting: str = ""
    submitted: float = 0.0
    parallelism: int = 1
    max_parallelism: int = 128
    slots: int = 1
    slot_counts: list[list[int]] = field(default_factory=list)
    restart_scope: str = "job"
    memory_bytes: int = 0
    lineage: str = ""
    sequence: int = 0
    address: str = ""
    python: str = ""

    @property
    def active(self) -> bool:
        """Whether the job is queued or runs."""
        return self.state in ACTIVE


class JobRegistry:
    """Keeps the records and the other files of jobs.

    Arguments:
        folder: the folder of the files, which only this user can access.
        report: called with a line about each record that cannot be written.
    """

    def __init__(self, folder: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._report = report
        self._records: dict[str, JobRecord] = {}
        self._next = 1

    def load(self) -> None:
        """Read the records of earlier services.

        A record that cannot be read is skipped, such as one that a full disk has truncated. Raise
        `OSError` if the folder cannot be read.
        """
        paths = [path for path in self._folder.glob("*.json") if path.stem.isdecimal()]
        known = {one.name for one in fields(JobRecord)}
        records = []
        for path in paths:
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                read = json.loads(read_private(path))
                # An older version may have written no slots.
                read.setdefault("slots", max(read["parallelism"], read.get("fixed_slots", 0)))
                # A newer version may have written fields that this one does not know.
                records.append(JobRecord(**{k: v for k, v in read.items() if k in known}))
        records.sort(key=lambda record: int(record.id))
        self._records = {record.id: record for record in records}
        self._next = max((int(path.stem) for path in paths), default=0) + 1

    @property
    def records(self) -> list[JobRecord]:
        """Return the records of all jobs, oldest first."""
        return list(self._records.values())

    def get(self, id: str) -> JobRecord | None:
        """Return the record of a job, or None if there is no job with this id."""
        return self._records.get(id)

    def require_own_folder(self, record: JobRecord) -> None:
        """Raise `Conflict` if another job uses the same checkpoint folder."""
        if not record.checkpoint_dir:
            return
        folder = os.path.realpath(record.checkpoint_dir)
        for other in self._records.values():
            if other.active and os.path.realpath(other.checkpoint_dir) == folder:
                raise Conflict(
                    f"job {other.id} ({other.state}) uses the checkpoint folder "
                    f"{record.checkpoint_dir}: each job needs one of its own"
                )

    def create(self, name: str, folder: str, checkpoint_dir: str = "") -> JobRecord:
        """Return the record of a new job, which `add` adds to the registry."""
        id = str(self._next)
        return JobRecord(
            id,
            name,
            state="queued",
            submitted=round(time.time(), 3),
            folder=folder,
            log=str(self.log(id)),
            checkpoint_dir=checkpoint_dir,
            address=self._address(id),
        )

    def _address(self, id: str) -> str:
        path = str(self._folder / f"{id}.socket")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        # A socket without a path, which only the token of the job protects.
        return f"@penstock-job-{secrets.token_hex(16)}"

    def add(self, record: JobRecord, request: bytes) -> None:
        """Add a new job, and save its record and its request durably.

        Raise `OSError` if one of them cannot be written. The job is not added then.
        """
        try:
            replace_private(self.request(record.id), request, sync=True)
            self._write(record, sync=True)
        except OSError:
            self._remove(record.id)
            raise
        self._records[record.id] = record
        self._next += 1

    def save(self, record: JobRecord) -> None:
        """Write a record to disk. A failure is only reported, so that the job continues."""
        try:
            self._write(record)
        except OSError as error:
            self._report(f"the record of job {record.id} cannot be written: {error}")

    def _write(self, record: JobRecord, sync: bool = False) -> None:
        data = json.dumps(asdict(record), indent=1).encode()
        replace_private(self._path(record.id), data, sync=sync)

    def request(self, id: str) -> Path:
        """Return the path of the first frame for the JobManager of a job."""
        return self._folder / f"{id}.job"

    def log(self, id: str) -> Path:
        """Return the path of a job's log."""
        return self._folder / f"{id}.log"

    def events(self, id: str) -> Path:
        """Return the path of the journal of a job's events."""
        return self._folder / f"{id}.events"

    def rejoin(self, id: str) -> Path:
        """Return the path of the socket at which workers of a job wait for a JobManager."""
        return self._folder / f"{id}.rejoin"

    def journal(self, id: str) -> EventJournal:
        """Return the journal of a job's events."""
        return EventJournal(self.events(id))

    def open_log(self, id: str) -> BinaryIO:
        """Open the log of a job for appending. Raise `OSError` if it cannot be opened."""
        return open(open_private(self.log(id), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")

    def forget_old(self, running: Container[str]) -> None:
        """Remove the files of ended jobs, except those of the newest `KEPT_JOBS`.

        Arguments:
            running: the ids of the jobs that have not ended.
        """
        ended = [id for id in self._records if id not in running]
        for id in ended[:-KEPT_JOBS]:
            del self._records[id]
            self._remove(id)

    def _remove(self, id: str) -> None:
        paths = (self._path(id), self.log(id), self.request(id), self.rejoin(id))
        with contextlib.suppress(OSError):
            for path in (*paths, self._folder / f"{id}.socket"):
                path.unlink(missing_ok=True)
            self.journal(id).remove()

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"
