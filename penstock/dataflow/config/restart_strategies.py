"""Define restart strategies, which decide when a failed job is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.arguments.durations import DurationLike, seconds_of, whole_number
from penstock.dataflow.errors import GraphError


@dataclass(frozen=True)
class RestartStrategy:
    """Decides when a failed job is restarted. The methods of `RestartStrategies` create it.

    Arguments:
        kind: the kind of strategy: "none", "fixed_delay", "exponential" or "failure_rate".
        attempts: the largest number of restarts, or None if there is no limit. For "failure_rate",
            the largest number of restarts per interval.
        delay_seconds: the delay before each restart. For "exponential", the delay before the first
            restart.
        max_delay_seconds: for "exponential", the longest delay.
        multiplier: for "exponential", the factor by which the delay grows with each restart.
        reset_seconds: for "exponential", the time without a failure after which the delay is
            `delay_seconds` again.
        interval_seconds: for "failure_rate", the length of the interval in which failures are
            counted.

    Examples:
        >>> strategy = RestartStrategies.fixed_delay_restart(3, 1_000)
        >>> strategy.attempts, strategy.delay_seconds
        (3, 1.0)
    """

    kind: str
    attempts: int | None = None
    delay_seconds: float = 0.0
    max_delay_seconds: float = 60.0
    multiplier: float = 2.0
    reset_seconds: float = 3600.0
    interval_seconds: float = 60.0


#: Flink's name of `RestartStrategy`.
RestartStrategyConfiguration = RestartStrategy


def check_restart_strategy(strategy: object) -> None:
    """Raise a `GraphError` if an object is not a restart strategy."""
    if not isinstance(strategy, RestartStrategy):
        raise GraphError(f"a restart strategy is made by RestartStrategies, not {strategy!r}")


class RestartStrategies:
    """Creates restart strategies. (Flink: `RestartStrategies`.)

    All times are numbers of milliseconds, or `timedelta`s. All methods raise a `GraphError` if a
    number or a time is out of range.

    Examples:
        >>> _ = env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1_000))
    """

    @staticmethod
    def no_restart() -> RestartStrategy:
        """Return a strategy that never restarts the job."""
        return RestartStrategy("none")

    @staticmethod
    def fall_back_restart() -> RestartStrategy:
        """Return the default strategy: any number of restarts, after a growing delay."""
        return RestartStrategies.exponential_delay_restart()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: DurationLike
    ) -> RestartStrategy:
        """Return a strategy with a fixed number of restarts and a fixed delay.

        Arguments:
            restart_attempts: the total number of restarts. The next failure ends the job.
            delay_between_attempts: the delay before each restart.
        """
        return RestartStrategy(
            "fixed_delay",
            whole_number("restart_attempts", restart_attempts),
            seconds_of("delay_between_attempts", delay_between_attempts),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: DurationLike = 100,
        max_backoff: DurationLike = 60_000,
        backoff_multiplier: float = 2.0,
        reset_backoff_threshold: DurationLike = 3_600_000,
        attempts: int | None = None,
    ) -> RestartStrategy:
        """Return a strategy whose delay grows with each failure.

        Arguments:
            initial_backoff: the delay before the first restart.
            max_backoff: the longest delay.
            backoff_multiplier: the factor by which the delay grows with each restart; at least 1.
            reset_backoff_threshold: the time without a failure after which the delay is
                `initial_backoff` again.
            attempts: the largest total number of restarts; unlimited if None.
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
        max_failures_per_interval: int, failure_interval: DurationLike, delay: DurationLike
    ) -> RestartStrategy:
        """Return a strategy that ends the job when failures are frequent.

        Arguments:
            max_failures_per_interval: the number of failures within `failure_interval` after which
                the job is still restarted. One more failure ends the job.
            failure_interval: the length of the interval in which failures are counted.
            delay: the delay before each restart.
        """
        return RestartStrategy(
            "failure_rate",
            whole_number("max_failures_per_interval", max_failures_per_interval),
            seconds_of("delay", delay),
            interval_seconds=seconds_of("failure_interval", failure_interval),
        )
