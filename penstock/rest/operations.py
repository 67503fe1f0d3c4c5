"""Define what the HTTP API needs of the owner of jobs, and how requests are refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.runtime.control.job_state import JobState, ShadowRequest, SnapshotRequest
from penstock.runtime.control.requests import Request
from penstock.saved.state_requests import StateRequest


class RefusedRequest(Exception):
    """A request is refused. Its sender receives the status and a sentence.

    Arguments:
        status: the status of HTTP, which is between 400 and 499.
        sentence: says what is wrong, and what to do.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class JobOperations(Protocol):
    """Owns jobs, and executes orders. All methods are called in the thread of the server.

    A method that cannot do what it is asked for raises `RefusedRequest`.
    """

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs can be submitted, rescaled and restarted."""

    def jobs(self) -> Sequence[JobState]:
        """Return the states of all jobs, oldest first."""

    def slots(self) -> int:
        """Return the number of slots for workers; 0 if it is not limited."""

    def free_slots(self) -> int:
        """Return the number of slots that no job takes."""

    async def submit(
        self, path: str, options: list[str], arguments: list[str], folder: str
    ) -> JobState:
        """Run a job file up to its program, take the program, and return the state of its job."""

    async def keep_files(self, archive: bytes) -> Path:
        """Keep the files of a program, given as a zip archive, and return their folder."""

    def answers(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """Carry out a request of the command line, and yield the answers.

        If the client closes the connection, the order is still carried out to its end.
        """

    async def upgrade(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> None:
        """Replace the program of a job by that of a job file."""

    async def shadow_run(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> ShadowRequest:
        """Compare the program of a job file with that of a job; return the request for the report.

        Arguments:
            job: the job.
            path: the path of the job file.
            options: options of `penstock upgrade --shadow`.
            arguments: the arguments of the job file.
            folder: the working directory; empty for that of the job file.
        """

    async def cancel(self, job: JobState) -> None:
        """End a job at once, without a final snapshot."""

    async def stop(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Stop a job with a final snapshot, and return the request for the snapshot.

        Arguments:
            job: the job.
            target: the new folder or object store to copy the snapshot to; None for no copy.
        """

    async def savepoint(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Take a savepoint, and return the request for it. The arguments are those of `stop`."""

    async def profile(self, job: JobState) -> None:
        """Request the call stacks of a job's workers."""

    async def rescale(self, job: JobState, parallelism: int) -> None:
        """Continue a job with another parallelism."""

    async def restart(self, job: JobState) -> None:
        """Start a job again from its newest snapshot."""

    async def state_names(self, job: JobState) -> dict[str, Any]:
        """Return the states of the newest snapshot of a job."""

    async def query_state(self, job: JobState, request: StateRequest, live: bool) -> dict[str, Any]:
        """Return entries of a state of a job: those of its newest snapshot, or live ones."""

    async def sample_edge(
        self, job: JobState, edge: str, limit: int, seconds: float
    ) -> dict[str, Any]:
        """Return records that travel on an edge of a job from now on."""

    def log_file(self, job: JobState) -> Path | None:
        """Return the path of a job's log; None if its output goes to a terminal."""


def find_job(operations: JobOperations, id: str) -> JobState:
    """Return the state of the job with an id.

    Raises:
        RefusedRequest: if there is no such job.
    """
    for job in operations.jobs():
        if job.id == id:
            return job
    raise RefusedRequest(404, f"there is no job {id}; GET /v1/jobs lists all")


def require_running(job: JobState) -> None:
    """Raise `RefusedRequest` if a job has ended."""
    if job.ended:
        raise RefusedRequest(409, f"job {job.id} does not run: it is {job.status.name}")
