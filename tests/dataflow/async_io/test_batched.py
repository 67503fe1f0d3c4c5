"""What a program passes to `AsyncDataStream.batched` is checked when it is passed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    BatchedFunction,
    DataStream,
    GraphError,
    RequestCache,
    StreamExecutionEnvironment,
    Time,
)
from penstock.dataflow.async_io import AsyncOperation


def stream() -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_sequence(1, 3)


async def ask(values: list[Any]) -> list[Any]:
    return values


def block(values: list[Any]) -> list[Any]:
    return values


def yields(values: list[Any]) -> Any:
    yield from values


async def yields_async(values: list[Any]) -> Any:
    yield values


class Ask(BatchedFunction):
    async def invoke_batch(self, values: list[Any]) -> list[Any]:
        return values


class Block(BatchedFunction):
    def invoke_batch(self, values: list[Any]) -> list[Any]:
        return values


class AsyncOpen(Block):
    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        pass


class AsyncTimeout(Ask):
    async def timeout(self, values: list[Any]) -> list[Any]:  # type: ignore[override]
        return values


class OfOne(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Model:
    def __call__(self, values: list[Any]) -> list[Any]:
        return values

    async def ask(self, values: list[Any]) -> list[Any]:
        return values


def operation_of(stream: DataStream) -> AsyncOperation:
    (operator,) = [o for o in stream._environment._graph.operators if o.spec.name == "async_wait"]
    assert isinstance(operator.function, AsyncOperation)
    return operator.function


@pytest.mark.parametrize(
    ("function", "run_in"),
    [
        (ask, "asyncio"),
        (block, "threads"),
        (Ask(), "asyncio"),
        (Block(), "threads"),
        (Model(), "threads"),
        (Model().ask, "asyncio"),
        (partial(ask), "asyncio"),
        (len, "threads"),
    ],
)
def test_a_function_runs_in_a_place_for_its_kind(function: Any, run_in: str) -> None:
    assert operation_of(AsyncDataStream.batched(stream(), function, 5)).run_in == run_in


def test_the_settings_arrive() -> None:
    cache = RequestCache(Time.seconds(2), 7, str)
    out = AsyncDataStream.batched(
        stream(),
        ask,
        Time.seconds(1),
        batch_size=8,
        batch_wait=Time.milliseconds(3),
        max_calls=2,
        ordered=False,
        records_per_second=5,
        cache=cache,
        run_in="trio",
    )
    operation = operation_of(out)
    assert operation.capacity == 32 and operation.timeout_ms == 1000 and not operation.ordered
    batching = operation.batching
    assert batching is not None and operation.run_in == "trio"
    assert (batching.size, batching.wait_ms, batching.max_calls) == (8, 3, 2)
    assert batching.records_per_second == 5.0 and batching.calls_per_second is None
    assert batching.cache is cache and cache.ttl_ms == 2000


@pytest.mark.parametrize(
    ("function", "run_in", "message"),
    [
        (ask, "threads", r'async function ask: .* in "threads" are plain ones; leave out run_in'),
        (ask, "thread", r'functions that run in "thread" are plain'),
        (block, "asyncio", r"block is none: define it with `async def`, or leave out run_in"),
        (block, "gevent", r"run_in is one of 'asyncio', 'trio', 'threads', 'thread'"),
        (yields, None, r"batched got yields, which yields: return a list"),
        (yields_async, None, r"batched got yields_async, which yields"),
        (Block, None, r"\(an instance, not the class\), and got <class"),
        (
            OfOne(),
            None,
            r"OfOne is an AsyncFunction, which gets one: derive it from BatchedFunction",
        ),
        (7, None, r"a function or a BatchedFunction \(of a list of records\), and got 7"),
        (lambda: [1], None, r"calls its function as \(values\)"),
        (AsyncOpen(), None, r"AsyncOpen.open is an async function, and must be a plain one with"),
        (AsyncTimeout(), None, r"AsyncTimeout.timeout is an async method"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(function: Any, run_in: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        AsyncDataStream.batched(stream(), function, 5, run_in=run_in)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": 2.5}, "batch_size is a whole number"),
        ({"batch_wait": -1}, "batch_wait must not be negative"),
        ({"batch_wait": "1 s"}, "batch_wait is a number of milliseconds .* write 1000"),
        ({"max_calls": 0}, "max_calls must be at least 1"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"capacity": 9, "batch_size": 10}, "at least batch_size, .* is 9, and batch_size is 10"),
        ({"records_per_second": 0}, "records_per_second is a number above 0, not 0"),
        ({"calls_per_second": "fast"}, "calls_per_second is a number above 0, not 'fast'"),
        ({"calls_per_second": float("inf")}, "calls_per_second is a number above 0"),
        ({"retry": 3}, "batched takes an AsyncRetryStrategy, .* not 3"),
        ({"cache": 60}, r"cache is a RequestCache, such as RequestCache\(\), not 60"),
        ({"combine": lambda result: result}, r"combine calls its function as \(record, result\)"),
        ({"stream": [1, 2]}, r"batched takes a stream first, and got \[1, 2\]"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"stream": stream(), "function": ask, "timeout": 5, **arguments}
    with pytest.raises(GraphError, match=message):
        AsyncDataStream.batched(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ttl": 0}, "ttl must be at least 1 ms"),
        ({"max_entries": -1}, "max_entries must be at least 0"),
        ({"key": lambda: 1}, r"key calls its function as \(value\)"),
        ({"key": "customer"}, "key takes a function, not 'customer'"),
    ],
)
def test_a_wrong_cache_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        RequestCache(**arguments)
