"""Decide whether a failed job is restarted, and after which delay. Sans-IO.

Some failures end the job at once, because no restart can mend them. For the others, the restart
strategy of the job decides. `docs/guides/restarts.md` has the rules for users.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.dataflow.config import RestartStrategy
from penstock.dataflow.errors import JobError, PenstockError, Recoverability

#: The strategy of jobs with snapshots: an unlimited number of restarts, with growing delays.
DEFAULT = RestartStrategy("exponential", None, 0.1, 60.0, 2.0, 300.0)
#: The number of equal failures without progress between them that ends the job. The count begins
#: again after the job has run well for a while, since an idle source makes no progress either.
MAX_REPEATS = 3
#: The number of failures that ends a job if none of its attempts has processed records yet.
MAX_FAILURES_AT_START = 3
#: The parts of a message that may differ between two failures with the same cause: numbers and
#: addresses.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class RestartDecision:
    """The decision whether a job restarts after a failure.

    Arguments:
        delay_seconds: the time to wait before the restart; None ends the job.
        reason: the reason why the job ends although its strategy would restart it. None in all
            other cases.
    """

    delay_seconds: float | None
    reason: str | None = None


class RestartBackoff:
    """Decides after each failure of one job whether the job is restarted.

    Arguments:
        strategy: the restart strategy of the job; None never restarts it.
    """

    def __init__(self, strategy: RestartStrategy | None) -> None:
        self._strategy = strategy or RestartStrategy("none")
        self._count = 0
        self._delay = self._strategy.delay_seconds
        self._failures: deque[float] = deque()
        self._last: float | None = None
        self._at_start = 0
        self._repeats: Counter[Hashable] = Counter()
        self._progress: Hashable = None
        #: The planned time of the last restart, in seconds, and the newest snapshot at the last
        #: failure.
        self._restarted: float | None = None
        self._snapshot: int | None = None

    def failed(
        self,
        now: float,
        error: PenstockError,
        *,
        started: bool,
        progress: Hashable,
        snapshot: int | None = None,
    ) -> RestartDecision:
        """Decide whether the job is restarted after a failure.

        Arguments:
            now: the time of the failure, in seconds.
            error: the error of the failed attempt.
            started: whether an attempt of the job has begun to process records.
            progress: a value that is equal for two failures if the job has made no progress between
                them: no new snapshot has read further in the input.
            snapshot: the number of the newest snapshot of the run; None if there is none.
        """
        strategy = self._strategy
        if strategy.kind == "none":
            return RestartDecision(None)
        if error.recoverability is Recoverability.NON_RECOVERABLE:
            return RestartDecision(None, "no restart can mend this")
        if self._ran_well(now, snapshot):
            self._repeats.clear()
        self._snapshot = snapshot
        # If the strategy has a maximum number of attempts, only that number ends the job.
        bounded = strategy.kind != "failure_rate" and strategy.attempts is not None
        reason = None if bounded else self._reason_to_end(error, started, progress)
        if reason is not None:
            return RestartDecision(None, reason)
        delay = self._delay_after(now)
        self._restarted = now + (delay or 0.0)
        return RestartDecision(delay)

    def _ran_well(self, now: float, snapshot: int | None) -> bool:
        """Return whether the job has run well since its last restart.

        This means that the job has run for `reset_seconds` and has taken a snapshot. With an idle
        source it makes no progress, but its next failure must not count as a repeated failure.
        """
        if self._restarted is None or now - self._restarted < self._strategy.reset_seconds:
            return False
        return snapshot is not None and snapshot != self._snapshot

    def _reason_to_end(self, error: PenstockError, started: bool, progress: Hashable) -> str | None:
        if not started:
            self._at_start += 1
            if self._at_start >= MAX_FAILURES_AT_START:
                return f"the job could not be started {self._at_start} times in a row"
            return None
        if progress != self._progress:
            self._progress = progress
            self._repeats.clear()
        if error.recoverability is not Recoverability.RECOVERABLE:
            return None
        same = _signature(error)
        self._repeats[same] += 1
        if self._repeats[same] < MAX_REPEATS:
            return None
        return f"the job failed {MAX_REPEATS} times in this way without progress in between"

    def _delay_after(self, now: float) -> float | None:
        strategy = self._strategy
        if strategy.kind == "failure_rate":
            self._failures.append(now)
            while self._failures[0] <= now - strategy.interval_seconds:
                self._failures.popleft()
            allowed = strategy.attempts or 0
            return None if len(self._failures) > allowed else strategy.delay_seconds
        if strategy.attempts is not None and self._count >= strategy.attempts:
            return None
        self._count += 1
        if strategy.kind == "fixed_delay":
            return strategy.delay_seconds
        if self._last is not None and now - self._last >= strategy.reset_seconds:
            self._delay = strategy.delay_seconds
        self._last = now
        delay = self._delay
        self._delay = min(self._delay * strategy.multiplier, strategy.max_delay_seconds)
        return delay


def _signature(error: PenstockError) -> Hashable:
    """Return a value that is equal for two failures with the same cause."""
    if isinstance(error, JobError):
        return (error.operator, _VARYING.sub("#", error.message))
    return (type(error).__name__, _VARYING.sub("#", str(error)))
