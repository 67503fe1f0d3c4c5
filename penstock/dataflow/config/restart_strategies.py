"""Restart strategies: when a failed job is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.arguments.durations import Duration, seconds_of, whole_number
from penstock.dataflow.errors import GraphError

__all__ = ["RestartStrategies", "RestartStrategy"]


@dataclass(frozen=True)
class RestartStrategy:
    """When a failed job is restarted; made by `RestartStrategies`.

    Arguments:
        kind: "none", "fixed_delay", "exponential" or "failure_rate".
        attempts: largest number of restarts, in all or (failure rate) per interval; None is
            unlimited.
        delay_seconds: wait before a restart; for "exponential" the wait before the first.
        max_delay_seconds: exponential: the longest wait.
        multiplier: exponential: the factor by which the wait grows.
        reset_seconds: exponential: time without a failure after which the wait is the first again.
        interval_seconds: failure rate: the interval in which failures are counted.
    """

    kind: str
    attempts: int | None = None
    delay_seconds: float = 0.0
    max_delay_seconds: float = 60.0
    multiplier: float = 2.0
    reset_seconds: float = 3600.0
    interval_seconds: float = 60.0


class RestartStrategies:
    """Makes restart strategies. (Flink: `RestartStrategies`.)

    All times are milliseconds or `timedelta`s. All methods raise `GraphError` for a number or a
    time that is out of range.
    """

    @staticmethod
    def no_restart() -> RestartStrategy:
        """Return the strategy by which the first failure ends the job."""
        return RestartStrategy("none")

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: Duration
    ) -> RestartStrategy:
        """Return a strategy with a fixed number of restarts and a fixed delay.

        Arguments:
            restart_attempts: number of restarts in all; the next failure ends the job.
            delay_between_attempts: wait before each restart.
        """
        return RestartStrategy(
            "fixed_delay",
            whole_number("restart_attempts", restart_attempts),
            seconds_of("delay_between_attempts", delay_between_attempts),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Duration = 100,
        max_backoff: Duration = 60_000,
        backoff_multiplier: float = 2.0,
        reset_backoff_threshold: Duration = 3_600_000,
        attempts: int | None = None,
    ) -> RestartStrategy:
        """Return a strategy whose delay grows with each failure.

        Arguments:
            initial_backoff: wait before the first restart.
            max_backoff: the longest wait.
            backoff_multiplier: factor by which the wait grows; at least 1.
            reset_backoff_threshold: time without a failure after which the wait is
                `initial_backoff` again.
            attempts: largest number of restarts in all; None is unlimited.
        """
        if backoff_multiplier < 1:
            raise GraphError(f"backoff_multiplier must be at least 1, not {backoff_multiplier}")
        return RestartStrategy(
            "exponential",
            None if attempts is None else whole_number("attempts", attempts),
            seconds_of("initial_backoff", initial_backoff),
            seconds_of("max_backoff", max_backoff),
            backoff_multiplier,
            seconds_of("reset_backoff_threshold", reset_backoff_threshold),
        )

    @staticmethod
    def failure_rate_restart(
        max_failures_per_interval: int, failure_interval: Duration, delay: Duration
    ) -> RestartStrategy:
        """Return a strategy that ends the job when failures are frequent.

        Arguments:
            max_failures_per_interval: largest number of failures within `failure_interval` that
                do not end the job.
            failure_interval: length of the interval in which failures are counted.
            delay: wait before each restart.
        """
        return RestartStrategy(
            "failure_rate",
            whole_number("max_failures_per_interval", max_failures_per_interval),
            seconds_of("delay", delay),
            interval_seconds=seconds_of("failure_interval", failure_interval),
        )
