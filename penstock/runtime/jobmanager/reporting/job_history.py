"""Record the snapshots, restarts, lost slots and slow tasks of a job for its report.

A job may run for months. So only the newest of each are kept, and sums over all.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

#: The maximum number of snapshots, restarts, rescales and stragglers in the report of a job.
KEPT = 100


class JobHistory:
    """Records the snapshots, restarts, rescales and stragglers of one run of a job."""

    def __init__(self) -> None:
        self._snapshots: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._restarts: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._rescales: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._stragglers: deque[dict[str, Any]] = deque(maxlen=KEPT)
        #: The restarts that have begun: the time of the failure, in seconds, and the figures. The
        #: key is the region that restarts, or None for the job.
        self._begun: dict[str | None, tuple[float, dict[str, Any]]] = {}
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

    def add_rescale(self, slots: int, wanted: int, reason: str) -> None:
        """Add a change of the number of slots with which the job runs."""
        rescale = {"time": time.time(), "slots": slots, "wanted": wanted, "reason": reason}
        self._rescales.append(rescale)

    def add_straggler(self, straggler: dict[str, Any]) -> None:
        """Add a task that is slower than its peers."""
        self._stragglers.append({"time": time.time(), **straggler})

    def add_restart(
        self, cause: str, delay_seconds: float, now: float, region: str | None = None
    ) -> None:
        """Add a restart that is about to begin.

        Arguments:
            cause: the message of the failure.
            delay_seconds: the time to wait before the restart.
            now: the time of the failure on the clock of the JobManager, in seconds.
            region: the name of the region that restarts; None if the whole job does.
        """
        figures = {"cause": cause, "time": time.time(), "delay_seconds": delay_seconds}
        if region is not None:
            figures["region"] = region
        else:
            # The regions that were about to restart do so with the whole job.
            self._begun.clear()
        self._begun[region] = now, figures
        self._restarts.append(figures)
        self._totals["restarts"] += 1

    def runs_again(
        self, now: float, details: dict[str, Any], region: str | None = None
    ) -> dict[str, Any] | None:
        """Add the duration and details to the last restart, and return its figures.

        Return None if the region, or the job, was not restarted since the last call.
        """
        if region not in self._begun:
            return None
        failed_at, figures = self._begun.pop(region)
        seconds = round(now - failed_at, 3)
        self._totals["restart_seconds"] += seconds
        figures.update(seconds=seconds, **details)
        return figures

    def figures(self) -> dict[str, Any]:
        """Return the newest restarts, rescales, snapshots and stragglers, and the totals."""
        totals = {name: round(value, 3) for name, value in self._totals.items()}
        return {
            "restarts": list(self._restarts),
            "snapshots": list(self._snapshots),
            "rescales": list(self._rescales),
            "stragglers": list(self._stragglers),
            "totals": totals,
        }
