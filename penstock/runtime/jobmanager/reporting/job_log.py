"""Log the events of a job in the process of its JobManager.

Restarts are not logged here, because the client reports them (`client/job_warnings.py`).
"""

from __future__ import annotations

import logging

from penstock.runtime.jobmanager.reporting.job_events import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobSnapshotAborted,
    JobSnapshotCompleted,
    JobStarted,
    Resumed,
    WorkersStarted,
)

logger = logging.getLogger("penstock.jobmanager")


class JobLog:
    """Logs the events of one job.

    Arguments:
        name: the name of the job.
        shown: whether the client shows the progress and aborted snapshots in the place to which
            this log is written.
    """

    def __init__(self, name: str, shown: bool = False) -> None:
        self._name = name
        self._aborted_level = logging.INFO if shown else logging.WARNING
        self._attempts = 0

    def record(self, event: JobEvent) -> None:
        """Log an event, if its kind is one that the log contains."""
        match event:
            case JobStarted():
                logger.info("job %r starts (pid %d)", self._name, event.pid)
            case Resumed():
                logger.info("job %r resumes from snapshot %d", self._name, event.number)
            case WorkersStarted():
                self._attempts += 1
                pids = ", ".join(map(str, event.pids))
                logger.info("attempt %d runs on workers (pids %s)", self._attempts, pids)
            case JobSnapshotCompleted(figures):
                number, ms = figures["number"], figures["duration_ms"]
                logger.debug("snapshot %d is complete after %.0f ms", number, ms)
            case JobSnapshotAborted():
                text = "snapshot %d was aborted: %s"
                logger.log(self._aborted_level, text, event.number, event.reason)
            case JobFinished():
                how = "was stopped" if event.stopped else "has finished"
                logger.info("job %r %s", self._name, how)
            case JobFailed():
                logger.info("job %r has failed", self._name)
