"""Record the snapshots and restarts of a job for its report.

A job may run for months. So only the newest snapshots and restarts are kept, and sums over all.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

#: The maximum number of snapshots, and of restarts, in the report of a job.
KEPT = 100


class JobHistory:
    """Records the snapshots and restarts of one run of a job."""

    def __init__(self) -> None:
        self._snapshots: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._restarts: deque[dict[str, Any]] = deque(maxlen=KEPT)
        #: The time of the last failure, in seconds; None if the job has run again since.
        self._failed_at: float | None = None
        self._totals = {
            "snapshots": 0,
            "snapshot_ms": 0.0,
            "snapshot_bytes_new": 0,
            "restarts": 0,
            "restart_seconds": 0.0,
        }

    @property
    def restart_count(self) -> int:
        """Return the number of restarts so far."""
        return int(self._totals["restarts"])

    def add_snapshot(self, figures: dict[str, Any]) -> None:
        """Add the figures of a complete snapshot."""
        self._snapshots.append(figures)
        self._totals["snapshots"] += 1
        self._totals["snapshot_ms"] += figures["duration_ms"]
        self._totals["snapshot_bytes_new"] += figures["bytes_new"]

    def add_restart(self, cause: str, delay_seconds: float, now: float) -> None:
        """Add a restart that is about to begin.

        Arguments:
            cause: the message of the failure.
            delay_seconds: the time to wait before the restart.
            now: the time of the failure on the clock of the JobManager, in seconds.
        """
        self._failed_at = now
        self._restarts.append({"cause": cause, "time": time.time(), "delay_seconds": delay_seconds})
        self._totals["restarts"] += 1

    def runs_again(self, now: float, details: dict[str, Any]) -> dict[str, Any] | None:
        """Add the duration and details to the last restart, and return its figures.

        Return None if the job was not restarted since the last call.
        """
        if self._failed_at is None:
            return None
        seconds, self._failed_at = round(now - self._failed_at, 3), None
        self._totals["restart_seconds"] += seconds
        self._restarts[-1].update(seconds=seconds, **details)
        return self._restarts[-1]

    def figures(self) -> dict[str, Any]:
        """Return the newest restarts and snapshots, and the totals."""
        totals = {name: round(value, 3) for name, value in self._totals.items()}
        return {
            "restarts": list(self._restarts),
            "snapshots": list(self._snapshots),
            "totals": totals,
        }
