"""Define what sees the events of jobs, beside the HTTP API: `JobObserver`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.runtime.control.job_state import JobState
from penstock.runtime.dispatcher.job_registry import JobRecord


class JobObserver(Protocol):
    """Sees the events of the jobs of a service or of a program, and must not block."""

    def event(self, record: JobRecord, state: JobState, event: dict[str, Any]) -> None:
        """Take an event, which the state has handled. Events before the service are left out."""

    def ended(self, record: JobRecord, state: JobState) -> None:
        """Take the end of a job."""

    async def run(self, jobs: Callable[[], Sequence[JobState]]) -> None:
        """Do the rest of the work until cancelled.

        Arguments:
            jobs: returns the states of all jobs.
        """
