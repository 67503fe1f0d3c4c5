"""Define the errors that end an attempt whose slots are lost or have returned."""

from __future__ import annotations

from penstock.dataflow.errors import PenstockError
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost


class WorkersNotStarted(WorkerLost):
    """Some workers of an attempt could not be started.

    Arguments:
        message: a text that names the first of them, and describes its failure.
        region: the index of the first chain of their region.
        count: the number of these workers.
    """

    def __init__(self, message: str, region: int, count: int) -> None:
        super().__init__(message)
        self.region = region
        self.count = count


class Rescaling(PenstockError):
    """The attempt ends, because the job restarts with another number of slots."""
