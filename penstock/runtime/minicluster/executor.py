"""Run programs inside their own process: `InProcessExecutor`."""

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
        """Start the JobManager of a program in this process."""
        shown = options.progress is not None
        return InProcessJob(job_request(_without_timeouts(program), options, collecting, shown))


def _without_timeouts(program: Program) -> Program:
    """Return the program without time limits for workers and snapshots.

    A function that stands at a breakpoint must not look like a lost worker or a failed snapshot.
    """
    config = replace(
        program.config,
        heartbeat_timeout_seconds=math.inf,
        checkpoint_timeout_seconds=math.inf,
        stop_timeout_seconds=math.inf,
    )
    return replace(program, config=config)
