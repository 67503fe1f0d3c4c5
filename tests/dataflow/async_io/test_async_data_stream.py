"""What a program passes to `AsyncDataStream` is checked when it is passed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    DataStream,
    GraphError,
    MapFunction,
    StreamExecutionEnvironment,
    Time,
    async_retry_predicates,
)
from penstock.dataflow.graph.compile import compile_graph


def stream() -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_sequence(1, 3)


async def lookup(value: Any) -> list[Any]:
    return [value]


def blocking(value: Any) -> list[Any]:
    return [value]


class Lookup(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class NotAsync(AsyncFunction):
    def async_invoke(self, value: Any) -> list[Any]:  # type: ignore[override]
        return [value]


class Yields(AsyncFunction):
    async def async_invoke(self, value: Any) -> Any:  # type: ignore[override]
        yield value


class AsyncTimeout(Lookup):
    async def timeout(self, value: Any) -> list[Any]:  # type: ignore[override]
        return []


class AsyncOpen(Lookup):
    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        pass


class WrongOpen(Lookup):
    def open(self) -> None:  # type: ignore[override]
        pass


class Call:
    async def __call__(self, value: Any) -> list[Any]:
        return [value]


class Other(MapFunction):
    def map(self, value: Any) -> Any:
        return value


async def with_setting(setting: int, value: Any) -> list[Any]:
    return [setting, value]


@pytest.mark.parametrize(
    ("function", "run_in"),
    [
        (lookup, "asyncio"),
        (Lookup(), "trio"),
        (AsyncOpen(), "asyncio"),
        (Call(), "asyncio"),
        (partial(with_setting, 1), "asyncio"),
        (blocking, "threads"),
        (NotAsync(), "threads"),
        (lambda value: [value], "threads"),
    ],
)
def test_a_function_that_fits_is_taken(function: Any, run_in: Any) -> None:
    made = AsyncDataStream.ordered_wait(stream(), function, Time.seconds(1), run_in=run_in)
    assert made.get_name() == "Async Wait"


@pytest.mark.parametrize(
    ("function", "run_in", "message"),
    [
        (blocking, "asyncio", r"takes an async function, and blocking is none: define it with"),
        (lambda value: [value], "trio", r"define it with `async def`.*add run_in=\"threads\""),
        (NotAsync(), "asyncio", r"NotAsync.async_invoke is none"),
        (Yields(), "asyncio", r"Yields.async_invoke, which yields: .* returns a list"),
        (lookup, "threads", r"the async function lookup: .* leave out run_in=\"threads\""),
        (Lookup, "asyncio", r"\(an instance, not the class\), and got <class"),
        (Other(), "asyncio", r"takes an async function or an AsyncFunction .*Other"),
        (7, "asyncio", r"takes an async function or an AsyncFunction .* got 7"),
        (with_setting, "asyncio", r"\(value\), and with_setting takes"),
        (AsyncTimeout(), "asyncio", r"AsyncTimeout.timeout is an async function, and must be"),
        (AsyncOpen(), "trio", r"AsyncOpen.open is an async function, .* run_in='trio'"),
        (WrongOpen(), "asyncio", r"Function.open"),
        (lookup, "gevent", r"run_in is one of 'asyncio', 'trio', 'threads', 'thread', and got"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function: Any, run_in: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        AsyncDataStream.unordered_wait(stream(), function, 1000, run_in=run_in)


def test_an_async_function_elsewhere_is_sent_to_async_data_stream() -> None:
    with pytest.raises(GraphError, match=r"AsyncDataStream.ordered_wait and unordered_wait take"):
        stream().map(lookup)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lookup, "5 s"), r"timeout is a number of milliseconds or a timedelta, not '5 s'"),
        ((lookup, -1), r"timeout must not be negative"),
        ((lookup, 1, 0), r"capacity must be at least 1, not 0"),
        ((lookup, 1, 2.5), r"capacity is a whole number, not 2.5"),
    ],
)
def test_wrong_settings_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        AsyncDataStream.ordered_wait(stream(), *arguments)


def test_the_first_argument_is_a_stream_and_the_strategy_a_strategy() -> None:
    with pytest.raises(GraphError, match=r"ordered_wait takes a stream first, and got \[1, 2\]"):
        AsyncDataStream.ordered_wait([1, 2], lookup, 1)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"takes an AsyncRetryStrategy, such as .* not 3"):
        AsyncDataStream.ordered_wait_with_retry(stream(), lookup, 1, 3)  # type: ignore[arg-type]


def test_the_operator_is_the_first_one_of_its_chain() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    before = env.from_sequence(1, 3).map(lambda i: i)
    waited = AsyncDataStream.ordered_wait(before, lookup, 1000)
    AsyncDataStream.unordered_wait(waited.map(lambda i: i), lookup, 1000).print()
    program = env._program([])
    names = [chain.name for chain in compile_graph(program.graph, program.config).chains]
    assert names == [
        "Source: Sequence → Map",
        "Async Wait → Map",
        "Async Wait → Print to Std. Out",
    ]


# ---- retry strategies


def test_a_fixed_delay_allows_so_many_repetitions() -> None:
    empty = async_retry_predicates.empty_result_predicate
    strategy = AsyncRetryStrategy.fixed_delay(2, Time.seconds(1), empty)
    assert [strategy.can_retry(attempts) for attempts in (1, 2, 3)] == [True, True, False]
    assert strategy.get_backoff_time_millis(2) == 1000
    assert strategy.get_retry_predicate().result_predicate() is empty
    assert strategy.get_retry_predicate().exception_predicate() is None


def test_an_exponential_backoff_grows_up_to_its_limit() -> None:
    failed = async_retry_predicates.has_exception_predicate
    strategy = AsyncRetryStrategy.exponential_backoff(
        5000, 100, 1000, 2.0, exception_predicate=failed
    )
    delays = [strategy.get_backoff_time_millis(attempts) for attempts in (1, 2, 3, 4, 5, 5000)]
    assert delays == [100, 200, 400, 800, 1000, 1000]


def test_no_restart_repeats_nothing() -> None:
    strategy = AsyncRetryStrategy.no_restart()
    assert not strategy.can_retry(1)
    assert isinstance(strategy.get_retry_predicate(), AsyncRetryPredicate)


def test_the_predicates_of_pyflink_are_there() -> None:
    assert async_retry_predicates.empty_result_predicate([])
    assert async_retry_predicates.empty_result_predicate(None)
    assert not async_retry_predicates.empty_result_predicate([0])
    assert async_retry_predicates.has_exception_predicate(ValueError())
    of_type = partial(
        async_retry_predicates.exception_type_predicate, expected_error_type=(OSError,)
    )
    assert of_type(ConnectionError()) and not of_type(ValueError())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncRetryStrategy.fixed_delay(2, 10), "needs result_predicate or exception_pre"),
        (lambda: AsyncRetryStrategy.fixed_delay(0, 10, bool), "max_attempts must be at least 1"),
        (lambda: AsyncRetryStrategy.fixed_delay(1, 0, bool), "must be at least 1 ms"),
        (lambda: AsyncRetryStrategy.fixed_delay(1, 1, lambda: True), r"result_predicate calls its"),
        (lambda: AsyncRetryStrategy.exponential_backoff(1, 1, 9, 0, bool), "a number above 0"),
    ],
)
def test_a_strategy_that_does_nothing_is_refused(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
