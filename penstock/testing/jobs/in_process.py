"""Find the job of this process in which a source or sink for tests runs."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError
from penstock.runtime.minicluster.minicluster import InProcessJob, running_job


def job_of(what: str) -> InProcessJob:
    """Return the job in which this code runs.

    Arguments:
        what: the name of the class that needs the job, for errors.

    Raises:
        GraphError: if the job does not run in the process of its program.
    """
    job = running_job.get()
    if job is None:
        raise GraphError(
            f"a {what} needs the job in the process of the test: call execute(in_process=True) or "
            f"env.set_in_process(), or use the fixture penstock_in_process"
        )
    return job
