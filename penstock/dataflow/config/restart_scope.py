"""Define `RestartScope`, the part of a job that a failure restarts."""

from __future__ import annotations

from enum import Enum


class RestartScope(Enum):
    """The part of a job that restarts after a failure.

    JOB: all tasks.
    REGION: the tasks that are connected to the failed one. Each region has workers of its own. The
        other regions keep running, and their snapshots complete meanwhile. (Flink: the failover
        strategy `region`.)
    TASK: the failed task and the tasks from which it gets records, back to the sources. Each task
        has a worker of its own. The other tasks of the region keep their state, and drop the
        records that they have processed before. (Carbone et al. 2015, figure 4.)
    """

    JOB = "job"
    REGION = "region"
    TASK = "task"
