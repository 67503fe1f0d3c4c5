"""Logs the life of a job, in its JobManager.

Restarts are not logged here: the client reports them (`restart_reports.py`).
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["JobLog"]

logger = logging.getLogger("penstock.jobmanager")


class JobLog:
    """Logs the events of one job.

    Arguments:
        name: of the job.
        shown: the client shows the progress in the same place, and snapshots that are aborted.
    """

    def __init__(self, name: str, shown: bool = False) -> None:
        self._name = name
        self._aborted_level = logging.INFO if shown else logging.WARNING
        self._attempts = 0

    def take(self, event: dict[str, Any]) -> None:
        """Log an event if it is one of the job's life."""
        match event["event"]:
            case "started":
                logger.info("job %r starts (pid %d)", self._name, event["pid"])
            case "resumed":
                logger.info("job %r resumes from snapshot %d", self._name, event["number"])
            case "workers":
                self._attempts += 1
                pids = ", ".join(map(str, event["pids"]))
                logger.info("attempt %d runs on workers (pids %s)", self._attempts, pids)
            case "snapshot":
                ms = event["duration_ms"]
                logger.debug("snapshot %d is complete after %.0f ms", event["number"], ms)
            case "aborted":
                text = "snapshot %d was aborted: %s"
                logger.log(self._aborted_level, text, event["number"], event["reason"])
            case "finished":
                how = "was stopped" if event["stopped"] else "has finished"
                logger.info("job %r %s", self._name, how)
            case "failed":
                logger.info("job %r has failed", self._name)
