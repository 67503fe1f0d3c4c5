"""Run jobs inside the process of their program: `InProcessExecutor`."""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.executor import LocalExecutor, job_request
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.minicluster.minicluster import InProcessJob

__all__ = ["InProcessExecutor"]


class InProcessExecutor(LocalExecutor):
    """Runs the JobManager and the workers of a program inside this process."""

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Return a connection to a job in this process.

        The job starts when the client reads the first event from the connection.
        """
        shown = options.progress is not None
        return InProcessJob(job_request(_without_timeouts(program), options, collecting, shown))


def _without_timeouts(program: Program) -> Program:
    """Return a copy of the program without timeouts for workers and snapshots.

    While the program waits at a breakpoint, the JobManager must not consider a worker lost or a
    snapshot failed.
    """
    config = replace(
        program.config,
        heartbeat_timeout_seconds=math.inf,
        checkpoint_timeout_seconds=math.inf,
        stop_timeout_seconds=math.inf,
    )
    return replace(program, config=config)
