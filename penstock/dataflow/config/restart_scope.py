"""Define `RestartScope`, the part of a job that a failure restarts."""

from __future__ import annotations

from enum import Enum


class RestartScope(Enum):
    """The part of a job that restarts after a failure.

    JOB: all tasks.
    REGION: the tasks that are connected to the failed one. Each region has workers of its own. The
        other regions keep running, and their snapshots complete meanwhile. (Flink: the failover
        strategy `region`.)
    """

    JOB = "job"
    REGION = "region"
