"""Keep the records of the jobs of a job service, in memory and on disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.dataflow.errors import PenstockError
from penstock.runtime.dispatcher.private_files import open_private, read_private, replace_private
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.store import Store

#: The maximum number of ended jobs whose records and logs are kept.
KEPT_JOBS = 100
#: The error of a job whose dispatcher was killed.
LOST = "the job manager died while the job ran"


@dataclass
class JobRecord:
    """The facts about one job that the job service keeps.

    Arguments:
        id: the number of the job, as text.
        name: the name of the job.
        state: "running", "finished", "stopped", "failed", "killed" (a signal has killed its
            JobManager) or "lost" (the dispatcher died while the job ran).
        started, ended: the times of the start and of the end, in seconds since the epoch. `ended`
            is None if the job has not ended.
        pid: the process id of its JobManager.
        worker_pids: the process ids of its workers.
        restarts: the number of restarts so far.
        last_snapshot: the number of the newest complete snapshot, or None.
        folder: the working directory of the JobManager.
        checkpoint_dir: the job's checkpoint folder, as an absolute path; empty if it has none.
        log: the path of the file with the job's standard output and error.
        error: the failure that ended the job, or how the job was killed. While the job runs, it is
            the cause of the last restart.
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


class JobRegistry:
    """Keeps the records and the logs of jobs.

    Arguments:
        folder: the folder of the records and logs, which only this user can access.
        report: called with a line about each record that cannot be written.
    """

    def __init__(self, folder: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._report = report
        self._records: dict[str, JobRecord] = {}
        self._next = 1

    def load(self, write: bool = True) -> None:
        """Read the records of earlier dispatchers, and mark their running jobs as lost.

        A record that cannot be read is skipped, such as one that a full disk has truncated. Raise
        `OSError` if the folder cannot be read or a record cannot be written.

        Arguments:
            write: whether to write the records of lost jobs. Without it, nothing is changed.
        """
        paths = [path for path in self._folder.glob("*.json") if path.stem.isdecimal()]
        records = []
        for path in paths:
            with contextlib.suppress(OSError, ValueError, TypeError):
                records.append(JobRecord(**json.loads(read_private(path))))
        records.sort(key=lambda record: int(record.id))
        for record in records:
            if record.state == "running":
                record.state = "lost"
                record.error = LOST
                record.worker_pids = []
                if write:
                    self._write(record)
        self._records = {record.id: record for record in records}
        self._next = max((int(path.stem) for path in paths), default=0) + 1

    def examine_lost(self) -> None:
        """Look up the newest snapshots of lost jobs in their checkpoint folders.

        The JobManager of a lost job stops its job with a final snapshot, which no dispatcher has
        noted. If a later job uses the same folder, its snapshots are not those of the lost job.
        """
        newest = {one.checkpoint_dir: one.id for one in self.records}
        for record in self.records:
            folder = record.checkpoint_dir
            if record.state != "lost" or not folder or newest[folder] != record.id:
                continue
            with contextlib.suppress(OSError, PenstockError):
                complete = [info for info in Store(Path(folder)).list() if info.complete]
                if complete:
                    record.last_snapshot = int(complete[-1].number)
                    if complete[-1].kind is SnapshotKind.FINAL:
                        record.error = f"{LOST}; the job stopped with its final snapshot"

    @property
    def records(self) -> list[JobRecord]:
        """Return the records of all jobs, oldest first."""
        return list(self._records.values())

    def get(self, id: str) -> JobRecord | None:
        """Return the record of a job, or None if there is no job with this id."""
        return self._records.get(id)

    def create(self, name: str, folder: str, checkpoint_dir: str = "") -> JobRecord:
        """Return the record of a new job, without adding it to the registry."""
        record = JobRecord(str(self._next), name, started=round(time.time(), 3), folder=folder)
        record.checkpoint_dir = checkpoint_dir
        record.log = str(self.log(record.id))
        self._next += 1
        return record

    def add(self, record: JobRecord) -> None:
        """Add the record of a job that was started, and save it."""
        self._records[record.id] = record
        self.save(record)

    def save(self, record: JobRecord) -> None:
        """Write a record to disk. A failure is only reported, so that the job continues."""
        try:
            self._write(record)
        except OSError as error:
            self._report(f"the record of job {record.id} cannot be written: {error}")

    def _write(self, record: JobRecord) -> None:
        data = json.dumps(asdict(record), indent=1).encode()
        replace_private(self._path(record.id), data)

    def log(self, id: str) -> Path:
        """Return the path of a job's log."""
        return self._folder / f"{id}.log"

    def open_log(self, id: str) -> BinaryIO:
        """Open the log of a job for appending. Raise `OSError` if it cannot be opened."""
        return open(open_private(self.log(id), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")

    def forget_old(self, running: Container[str]) -> None:
        """Remove the records and logs of ended jobs, except the newest `KEPT_JOBS`.

        Arguments:
            running: the ids of the jobs that have not ended.
        """
        ended = [id for id in self._records if id not in running]
        for id in ended[:-KEPT_JOBS]:
            del self._records[id]
            with contextlib.suppress(OSError):
                for path in (self._path(id), self.log(id)):
                    path.unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"
