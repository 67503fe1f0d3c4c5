"""Decides whether, and after how long, a failed job is restarted. Sans-IO.

First the failure decides: some cannot be mended by a restart. Then the restart strategy of the
job decides. `docs/restarts.md` has the rules for users.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.dataflow.config import RestartStrategy
from penstock.dataflow.errors import JobError, PenstockError, Recoverability

__all__ = ["DEFAULT", "MAX_FAILURES_AT_START", "MAX_REPEATS", "RestartBackoff", "RestartDecision"]

#: The strategy of jobs with snapshots: restart until stopped, with growing delays.
DEFAULT = RestartStrategy("exponential", None, 0.1, 60.0, 2.0, 300.0)
#: The number of times that the same failure may come without progress before it ends the job.
#: Failures that lie far apart are not counted together: a source may be idle for days.
MAX_REPEATS = 3
#: The number of failures that end a job of which no attempt has processed records yet.
MAX_FAILURES_AT_START = 3
#: Numbers and addresses differ between two failures that have the same cause.
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class RestartDecision:
    """The decision whether a job restarts after a failure.

    Arguments:
        delay_seconds: the wait before the restart; None ends the job.
        reason: why the job ends although its strategy would restart it; None if it does not.
    """

    delay_seconds: float | None
    reason: str | None = None


class RestartBackoff:
    """Decides what to do after each failure of one job.

    Arguments:
        strategy: from the job's configuration; None never restarts.
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
        #: The planned time of the last restart, and the newest snapshot at that time.
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
        """Decide what to do after a failure.

        Arguments:
            now: the time of the failure, in seconds.
            error: what the attempt failed with.
            started: an attempt of the job has begun to process records.
            progress: a value that is equal for two failures if no snapshot between them holds
                more input.
            snapshot: the number of the newest snapshot of the run.
        """
        strategy = self._strategy
        if strategy.kind == "none":
            return RestartDecision(None)
        if error.recoverability is Recoverability.NON_RECOVERABLE:
            return RestartDecision(None, "no restart can mend this")
        if self._ran_well(now, snapshot):
            self._repeats.clear()
        self._snapshot = snapshot
        # A strategy with a number of attempts ends the job by that number alone.
        bounded = strategy.kind != "failure_rate" and strategy.attempts is not None
        reason = None if bounded else self._reason_to_end(error, started, progress)
        if reason is not None:
            return RestartDecision(None, reason)
        delay = self._delay_after(now)
        self._restarted = now + (delay or 0.0)
        return RestartDecision(delay)

    def _ran_well(self, now: float, snapshot: int | None) -> bool:
        """Return whether the job has run for long since its last restart, with a snapshot.

        If its source was idle, there is no progress, but the failure does not count as a repeat.
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
