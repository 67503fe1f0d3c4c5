"""Decide whether a JobManager that has died is started again. Sans-IO.

The supervisor of a job starts its JobManager process: the client with `penstock run --supervise`,
or the job service. If the process dies before it has reported how the job ended, another one
continues the job from its newest snapshot. The job itself has not failed then, so its restart
strategy does not count this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.runtime.control.requests import Order, decode_job, encode_job

#: The number of deaths without a new snapshot between them that ends the job.
MAX_DEATHS = 6
#: The delay before the second restart without a new snapshot, in seconds. Each later delay is twice
#: as long. The first restart has no delay.
DELAY_SECONDS = 0.5
#: The time after which a JobManager counts as healthy even without a new snapshot, in seconds.
HEALTHY_SECONDS = 300.0


#: The options of a request that belong to the job, and not to its program.
_OF_JOB = ("lineage", "rejoin_address", "rejoin_token", "successor")


@dataclass(frozen=True)
class NextJobManager:
    """The decision to start another JobManager.

    Arguments:
        delay_seconds: the time to wait before the start.
        note: a text for the person who started the job.
        request: the first frame for the new JobManager.
    """

    delay_seconds: float
    note: str
    request: bytes


@dataclass(frozen=True)
class LastJobManager:
    """The decision to start no other JobManager.

    Arguments:
        note: a text for the person who started the job; None if the end needs no explanation.
    """

    note: str | None = None


class Supervision:
    """Decides after each death of the JobManager of one job whether another one is started.

    Arguments:
        request: the first frame for a JobManager that is not supervised.
        now: the time at which the first JobManager is started, in seconds.
        rejoin_address, rejoin_token: the address and the secret of the supervisor's `Rendezvous`.
    """

    def __init__(
        self, request: bytes, now: float, rejoin_address: str = "", rejoin_token: bytes = b""
    ) -> None:
        self._job = decode_job(request)
        self._set_options(rejoin_address=rejoin_address, rejoin_token=rejoin_token)
        self._started = now
        self._ended = self._killed = self._stopping = self._died_to_stop = False
        self._savepoints = 0
        self._deaths = 0

    def continue_from(self, lineage: str, parallelism: int, orphans: bool = True) -> None:
        """Let the next JobManager go on with the newest snapshot of a lineage.

        It is called for a job whose JobManager has ended before this supervision, or whose
        parallelism changes.

        Arguments:
            lineage: the lineage; empty if the job has no snapshot.
            parallelism: the parallelism of the job.
            orphans: whether workers of the JobManager before may still run.
        """
        if lineage:
            self._set_options(lineage=lineage)
        self._set_options(successor=orphans, parallelism=parallelism)
        self._ended = self._stopping = self._died_to_stop = False
        self._deaths = 0

    def replace_program(self, request: bytes) -> None:
        """Let the next JobManager run another program, as the same job.

        Arguments:
            request: the first frame for a JobManager of the other program.
        """
        kept = {name: self._job.options[name] for name in _OF_JOB if name in self._job.options}
        job = decode_job(request)
        self._job = replace(job, options={**job.options, **kept})

    def handle(self, event: dict[str, Any]) -> None:
        """Handle an event that a JobManager reports."""
        match event["event"]:
            case "finished" | "failed":
                self._ended = True
            case "resumed":
                # The next JobManager resumes from the snapshots of this lineage only. So a fork
                # that has no snapshot of its own yet begins again with its parent.
                self._set_options(lineage=event["continues"])
            case "snapshot":
                self._deaths = 0
                if event["kind"] == "savepoint":
                    self._savepoints = 0

    @property
    def request(self) -> bytes:
        """The first frame for the JobManager that is started now."""
        return encode_job(self._job)

    def _set_options(self, **options: Any) -> None:
        self._job = replace(self._job, options={**self._job.options, **options})

    @property
    def over(self) -> bool:
        """Whether no other JobManager may be started, since the job was killed."""
        return self._killed

    def ordered(self, order: Order) -> None:
        """Record an order to the job. A stop or a savepoint must outlive the JobManager."""
        if order is Order.STOP:
            self._stopping = True
        elif order is Order.SAVEPOINT:
            self._savepoints += 1

    def kill(self) -> None:
        """Record that the supervisor kills the JobManager, which ends the job."""
        self._killed = True

    def died(self, how: str, now: float) -> NextJobManager | LastJobManager:
        """Decide what follows the end of a JobManager process.

        Arguments:
            how: a text that says how the process ended.
            now: the time in seconds.
        """
        if self._ended or self._killed:
            return LastJobManager()
        if self._died_to_stop:
            return LastJobManager(f"the JobManager {how} again while the job was stopped")
        if now - self._started >= HEALTHY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            text = f"the JobManager {how}, for the {self._deaths}th time without a new snapshot"
            return LastJobManager(f"{text}: it is not started again")
        # As with a lost worker, a job that is stopped is restarted once for its last snapshot.
        self._died_to_stop = self._stopping
        delay = 0.0
        if self._deaths > 1 and not self._stopping:
            delay = DELAY_SECONDS * 2 ** (self._deaths - 2)
        when = f" in {delay:g} s" if delay else ""
        note = f"the JobManager {how}: another one goes on with the job{when}"
        self._set_options(successor=True)
        return NextJobManager(delay, note, self.request)

    def started(self, now: float) -> list[Order]:
        """Record that another JobManager was started, and return the orders to send to it.

        These are the orders that the JobManager before it has not executed.
        """
        self._started = now
        if self._stopping:
            return [Order.STOP]
        return [Order.SAVEPOINT] if self._savepoints else []
