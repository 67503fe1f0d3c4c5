"""`InProcessExecutor`: runs programs inside their own process."""

from __future__ import annotations

from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.executor import LocalExecutor, job_request
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.minicluster.minicluster import InProcessJob, in_process_program

__all__ = ["InProcessExecutor"]


class InProcessExecutor(LocalExecutor):
    """Runs the JobManager and the workers of a program inside this process."""

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Start the JobManager of a program in this process."""
        shown = options.progress is not None
        return InProcessJob(job_request(in_process_program(program), options, collecting, shown))
