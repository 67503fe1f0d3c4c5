"""Decide which jobs may run, by their slots and their memory. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.runtime.dispatcher.job_registry import JobRecord

#: Why a job has more workers than its highest parallelism, by its `RestartScope`.
_SCOPES = {"region": " (each region has its own)", "task": " (one for each task)"}


@dataclass(frozen=True)
class Limits:
    """The limits of a job service.

    Arguments:
        slots: the number of slots of all running jobs together; None for no limit. A job takes as
            many slots as it has worker processes: its highest parallelism, or more of them if its
            regions or single tasks restart alone.
        memory_bytes: the memory of all running jobs together; None for no limit.
        memory_per_slot: the memory that is kept free for each slot of a job that does not say how
            much it needs.
    """

    slots: int | None = None
    memory_bytes: int | None = None
    memory_per_slot: int = 512 << 20

    def memory_of(self, job: JobRecord) -> int:
        """Return the memory that is kept free for a job."""
        return job.memory_bytes or job.slots * self.memory_per_slot

    def why_never(self, job: JobRecord) -> str | None:
        """Return why a job can never run within these limits; None if it can."""
        return self._lack(job, ())

    def why_waiting(self, job: JobRecord, running: Sequence[JobRecord]) -> str | None:
        """Return why a job must wait, or None if it may run now.

        Arguments:
            job: the job.
            running: the jobs that run.
        """
        return self._lack(job, running)

    def _lack(self, job: JobRecord, running: Sequence[JobRecord]) -> str | None:
        scope = _SCOPES.get(job.restart_scope, "")
        taken = sum(other.slots for other in running)
        if self.slots is not None and job.slots + taken > self.slots:
            whole = _count(self.slots, "slot")
            needs = f"it needs {_count(job.slots, 'slot')}{scope}, and "
            if not running:
                return f"{needs}the service has {whole}"
            return f"{needs}{taken} of {whole} are taken by {_jobs(running)}"
        memory = self.memory_of(job)
        used = sum(self.memory_of(other) for other in running)
        if self.memory_bytes is not None and memory + used > self.memory_bytes:
            counted = f" for {_count(job.slots, 'worker')}{scope}" if scope else ""
            needs = f"it needs {_mb(memory)}{'' if job.memory_bytes else counted}, and "
            if not running:
                return f"{needs}the service has {_mb(self.memory_bytes)}"
            return f"{needs}{_mb(used)} of {_mb(self.memory_bytes)} are kept for {_jobs(running)}"
        return None


def runnable(
    queue: Sequence[JobRecord], running: Sequence[JobRecord], limits: Limits
) -> tuple[list[JobRecord], dict[str, str]]:
    """Return the jobs of a queue that may start now, and why each of the others waits.

    Jobs start in the order of the queue. A small job does not overtake a large one: otherwise
    the large one might never start.

    Arguments:
        queue: the jobs that wait, in order.
        running: the jobs that run.
        limits: the limits of the service.

    Returns:
        The jobs to start in order, and a reason by the id of each other job.
    """
    started: list[JobRecord] = []
    waiting: dict[str, str] = {}
    first = ""
    for job in queue:
        reason = limits.why_waiting(job, [*running, *started])
        if not first and reason is None:
            started.append(job)
            continue
        waiting[job.id] = (
            reason if reason is not None and not first else f"job {first} is before it"
        )
        first = first or job.id
    return started, waiting


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _jobs(jobs: Sequence[JobRecord]) -> str:
    noun = "job" if len(jobs) == 1 else "jobs"
    return f"{noun} {', '.join(job.id for job in jobs)}"


def _mb(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
