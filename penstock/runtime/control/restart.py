"""Restart strategies: whether, and after how long, a failed job is started again. Sans-IO."""

from __future__ import annotations

from collections import deque

from penstock.dataflow.config import RestartStrategy

__all__ = ["DEFAULT", "Restarts"]

#: With snapshots a job restarts until it is stopped, ever more slowly while it keeps failing.
DEFAULT = RestartStrategy("exponential", None, 0.1, 60.0, 2.0, 300.0)


class Restarts:
    """Decides on each failure of one job.

    Arguments:
        strategy: from the job's configuration.
    """

    def __init__(self, strategy: RestartStrategy) -> None:
        self._strategy = strategy
        self._count = 0
        self._delay = strategy.delay_seconds
        self._failures: deque[float] = deque()
        self._last: float | None = None

    def failed(self, now: float) -> float | None:
        """Seconds to wait before the next attempt, or None if there is to be none.

        Arguments:
            now: the time of the failure, in seconds.
        """
        strategy = self._strategy
        if strategy.kind == "none":
            return None
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
