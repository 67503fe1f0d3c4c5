"""Define retry strategies, which decide when an asynchronous request is repeated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import UserValue

ResultPredicate = Callable[[list[UserValue]], bool]
ExceptionPredicate = Callable[[Exception], bool]


class AsyncRetryPredicate(ABC):
    """Decides which results and errors are worth another request. (Flink: `AsyncRetryPredicate`.)

    A method returns a function, or None if no result, or no error, leads to another request.

    Examples:
        >>> class IfEmpty(AsyncRetryPredicate):
        ...     def result_predicate(self):
        ...         return lambda results: not results
        ...     def exception_predicate(self):
        ...         return None
        >>> IfEmpty().result_predicate()([])
        True
    """

    @abstractmethod
    def result_predicate(self) -> ResultPredicate | None:
        """Return a function of the list of records that the request has returned."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate | None:
        """Return a function of the error that the request has raised."""


class AsyncRetryStrategy(ABC):
    """Decides when an asynchronous request is repeated. (Flink: `AsyncRetryStrategy`.)

    Use one of the static methods, or write a subclass. One object serves all requests of a subtask,
    so its methods must depend on their arguments only.

    Examples:
        >>> if_empty = async_retry_predicates.empty_result_predicate
        >>> strategy = AsyncRetryStrategy.fixed_delay(3, 100, if_empty)
        >>> strategy.can_retry(1), strategy.get_backoff_time_millis(1)
        (True, 100)
    """

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Return whether a request may be repeated that was sent `current_attempts` times."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return the delay before the request is repeated, in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate:
        """Return the predicate that decides whether a request is repeated."""

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Return a strategy that never repeats a request."""
        return _Strategy(0, 1, 1, 1.0, _Predicate(None, None))

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: DurationLike,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Return a strategy with the same delay before each repetition.

        Arguments:
            max_attempts: the largest number of repetitions of a request.
            backoff_time_millis: the delay, in milliseconds or as a `Time` or `timedelta`.
            result_predicate: a function of the list of returned records, which returns whether the
                request is repeated; see `async_retry_predicates`.
            exception_predicate: the same for an error that the request has raised.

        Raises:
            GraphError: if an argument is out of range, or if there is no predicate.
        """
        delay = milliseconds_of("backoff_time_millis", backoff_time_millis, 1)
        predicate = _checked(result_predicate, exception_predicate)
        return _Strategy(whole_number("max_attempts", max_attempts, 1), delay, delay, 1, predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: DurationLike,
        max_retry_delay: DurationLike,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Return a strategy whose delay grows with each repetition.

        Arguments:
            max_attempts: the largest number of repetitions of a request.
            initial_delay: the delay before the first one, in milliseconds.
            max_retry_delay: the longest delay, in milliseconds.
            multiplier: the factor by which the delay grows.
            result_predicate: the same as for `fixed_delay`.
            exception_predicate: the same as for `fixed_delay`.

        Raises:
            GraphError: if an argument is out of range, or if there is no predicate.
        """
        if not isinstance(multiplier, int | float) or not multiplier > 0:
            raise GraphError(f"multiplier is a number above 0, not {multiplier!r}")
        return _Strategy(
            whole_number("max_attempts", max_attempts, 1),
            milliseconds_of("initial_delay", initial_delay, 1),
            milliseconds_of("max_retry_delay", max_retry_delay, 1),
            multiplier,
            _checked(result_predicate, exception_predicate),
        )


@dataclass(frozen=True)
class _Predicate(AsyncRetryPredicate):
    result: ResultPredicate | None
    exception: ExceptionPredicate | None

    def result_predicate(self) -> ResultPredicate | None:
        return self.result

    def exception_predicate(self) -> ExceptionPredicate | None:
        return self.exception


@dataclass(frozen=True)
class _Strategy(AsyncRetryStrategy):
    max_attempts: int
    initial_delay: int
    max_retry_delay: int
    multiplier: float
    predicate: AsyncRetryPredicate

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self.max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        try:
            delay = self.initial_delay * self.multiplier ** (current_attempts - 1)
        except OverflowError:
            return self.max_retry_delay
        return int(min(delay, self.max_retry_delay))

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self.predicate


def _checked(
    result: ResultPredicate | None, exception: ExceptionPredicate | None
) -> AsyncRetryPredicate:
    if result is None and exception is None:
        raise GraphError(
            "a retry strategy needs result_predicate or exception_predicate: without one no "
            "request is repeated; see penstock.async_retry_predicates"
        )
    for name, predicate in (("result_predicate", result), ("exception_predicate", exception)):
        if predicate is not None:
            check_argument_count(name, predicate, 1, f"({name.partition('_')[0]})")
    return _Predicate(result, exception)
