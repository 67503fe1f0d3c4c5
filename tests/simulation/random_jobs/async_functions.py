"""Shapes with asynchronous requests, which take random times on the virtual clock."""

from __future__ import annotations

import random
from typing import Any

import trio

from penstock.dataflow.async_io import (
    AsyncFunction,
    AsyncRetryStrategy,
    BatchedFunction,
    RequestCache,
)
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.streams import DataStream
from penstock.dataflow.streams.async_data_stream import AsyncDataStream
from penstock.dataflow.time import WatermarkStrategy
from tests.simulation.random_jobs.functions import (
    Hop,
    HopByWatermark,
    HopToTheEnd,
    LaterByWatermark,
)

__all__ = [
    "batched_event_time_loop",
    "batched_loop",
    "batched_requests",
    "event_time_loop",
    "loop",
    "requests",
    "timed_batched_requests",
    "timed_requests",
]

#: The largest number of requests of a subtask.
CAPACITY = 3
TIMEOUT_MS = 40


class Echo(AsyncFunction):
    """Emits each record after some time; some requests fail first, and some time out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.random = random.Random(len(name))

    def open(self, runtime_context: Any) -> None:
        self.random = random.Random(f"{self.name} {runtime_context.get_index_of_this_subtask()}")

    async def async_invoke(self, value: Any) -> list[Any]:
        await trio.sleep(self.random.choice([0.0, 0.001, 0.005, 0.02, 0.06]))
        if self.random.random() < 0.1:
            raise ConnectionError("try again")
        return self.results(value)

    def timeout(self, value: Any) -> list[Any]:
        return self.results(value)

    def results(self, value: Any) -> list[Any]:
        return [value]


class Late(Echo):
    def results(self, value: Any) -> list[Any]:
        return [("later", value)]


class EchoAll(BatchedFunction):
    """Does what a function of one record does, with many; whole calls and single records fail."""

    def __init__(self, echo: Echo) -> None:
        self.echo = echo

    def open(self, runtime_context: Any) -> None:
        self.echo.open(runtime_context)

    async def invoke_batch(self, values: list[Any]) -> list[Any]:
        random = self.echo.random
        await trio.sleep(random.choice([0.0, 0.001, 0.005, 0.02, 0.06]))
        if random.random() < 0.1:
            raise ConnectionError("try again")
        results: list[Any] = list(map(self.echo.results, values))
        if random.random() < 0.2:
            results[random.randrange(len(values))] = ConnectionError("try this one again")
        return results

    def timeout(self, values: list[Any]) -> list[Any]:
        return list(map(self.echo.results, values))


def _strategy() -> AsyncRetryStrategy:
    return AsyncRetryStrategy.fixed_delay(
        1000, 3, exception_predicate=lambda error: isinstance(error, ConnectionError)
    )


def _wait_for_batches(stream: DataStream, function: Echo, choices: Any) -> DataStream:
    rng = random.Random(f"{choices} {function.name}")
    size = rng.randint(1, 5)
    waiting = AsyncDataStream.batched(
        stream,
        EchoAll(function),
        TIMEOUT_MS,
        size + rng.choice([0, 3, 12]),
        batch_size=size,
        batch_wait=rng.choice([0, 2, 10]),
        max_calls=rng.randint(1, 3),
        ordered=choices.hook,
        flatten=True,
        retry=_strategy(),
        cache=RequestCache(15, choices.keys) if choices.mutable else None,
        calls_per_second=rng.choice([None, 2_000]),
        run_in="trio",
    )
    return waiting.uid(function.name)


def _wait(stream: DataStream, function: Echo, ordered: bool) -> DataStream:
    strategy = _strategy()
    wait = AsyncDataStream.unordered_wait_with_retry
    if ordered:
        wait = AsyncDataStream.ordered_wait_with_retry
    waiting = wait(stream, function, TIMEOUT_MS, strategy, CAPACITY, run_in="trio")
    return waiting.uid(function.name)


def batched_requests(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """Requests for many records, on a stream with or without keys."""
    keys = choices.keys
    sent = stream.key_by(lambda i: i % keys) if choices.mutable else stream.rebalance()
    return _wait_for_batches(sent, Late("batched requests"), choices)


def timed_batched_requests(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """Requests for many records, between which there are watermarks; timers fire behind them."""
    timed = _timed(stream).rebalance()
    echoed = _wait_for_batches(timed, Echo("timed batched requests"), choices)
    return _later(echoed, choices)


def batched_loop(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """A loop with requests for many records on the way back, and hooks at its end."""
    starts = stream.map(lambda i: (i, i % 4 * 2)).uid("starts")
    function = HopToTheEnd() if choices.hook else None
    return _loop(env, starts, choices, function, batched=True)


def batched_event_time_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """A loop with event time and requests for many records on the way back."""
    return _loop(env, _timed_starts(stream), choices, HopByWatermark(), batched=True)


def requests(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """Requests on a stream with or without keys."""
    keys = choices.keys
    sent = stream.key_by(lambda i: i % keys) if choices.mutable else stream.rebalance()
    return _wait(sent, Late("requests"), choices.hook)


def timed_requests(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """Requests between which there are watermarks; timers fire behind them."""
    echoed = _wait(_timed(stream).rebalance(), Echo("timed requests"), choices.hook)
    return _later(echoed, choices)


def _timed(stream: DataStream) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda i, _: i)
    return stream.assign_timestamps_and_watermarks(strategy).uid("timed")


def _later(echoed: DataStream, choices: Any) -> DataStream:
    keys = choices.keys
    return echoed.key_by(lambda i: i % keys).process(LaterByWatermark()).uid("later")


def loop(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """A loop with requests on the way back, and hooks at its end."""
    starts = stream.map(lambda i: (i, i % 4 * 2)).uid("starts")
    return _loop(env, starts, choices, HopToTheEnd() if choices.hook else None)


def event_time_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """A loop with event time and requests on the way back."""
    return _loop(env, _timed_starts(stream), choices, HopByWatermark())


def _timed_starts(stream: DataStream) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda pair, _: pair[0])
    starts = stream.map(lambda i: (i, i % 4 * 2)).uid("starts")
    return starts.assign_timestamps_and_watermarks(strategy).uid("timed")


def _loop(
    env: StreamExecutionEnvironment,
    starts: DataStream,
    choices: Any,
    function: Any,
    batched: bool = False,
) -> DataStream:
    keys = choices.keys
    back = env.create_feedback("back")
    into = starts.union(back).key_by(lambda pair: pair[0] % keys)
    hops = into.process(function or Hop()).uid("hop")
    on = hops.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])).uid("on")
    echo = Echo("way back")
    waiting = _wait_for_batches(on, echo, choices) if batched else _wait(on, echo, choices.mutable)
    back.close_with(waiting)
    return hops.filter(lambda r: r[0] != "on").rebalance().map(lambda r: r).uid("out")
