"""Shapes with asynchronous requests, which take random times on the virtual clock."""

from __future__ import annotations

import random
from typing import Any

import trio

from penstock.dataflow.async_io import AsyncFunction, AsyncRetryStrategy
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

__all__ = ["event_time_loop", "loop", "requests", "timed_requests"]

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


def _wait(stream: DataStream, function: Echo, ordered: bool) -> DataStream:
    strategy = AsyncRetryStrategy.fixed_delay(
        1000, 3, exception_predicate=lambda error: isinstance(error, ConnectionError)
    )
    wait = AsyncDataStream.unordered_wait_with_retry
    if ordered:
        wait = AsyncDataStream.ordered_wait_with_retry
    waiting = wait(stream, function, TIMEOUT_MS, strategy, CAPACITY, run_in="trio")
    return waiting.uid(function.name)


def requests(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """Requests on a stream with or without keys."""
    keys = choices.keys
    sent = stream.key_by(lambda i: i % keys) if choices.mutable else stream.rebalance()
    return _wait(sent, Late("requests"), choices.hook)


def timed_requests(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """Requests between which there are watermarks; timers fire behind them."""
    keys, strategy = choices.keys, WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda i, _: i)
    timed = stream.assign_timestamps_and_watermarks(strategy).uid("timed")
    echoed = _wait(timed.rebalance(), Echo("timed requests"), choices.hook)
    return echoed.key_by(lambda i: i % keys).process(LaterByWatermark()).uid("later")


def loop(env: StreamExecutionEnvironment, stream: DataStream, choices: Any) -> DataStream:
    """A loop with requests on the way back, and hooks at its end."""
    starts = stream.map(lambda i: (i, i % 4 * 2)).uid("starts")
    return _loop(env, starts, choices, HopToTheEnd() if choices.hook else None)


def event_time_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Any
) -> DataStream:
    """A loop with event time and requests on the way back."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda pair, _: pair[0])
    starts = stream.map(lambda i: (i, i % 4 * 2)).uid("starts")
    timed = starts.assign_timestamps_and_watermarks(strategy).uid("timed")
    return _loop(env, timed, choices, HopByWatermark())


def _loop(
    env: StreamExecutionEnvironment, starts: DataStream, choices: Any, function: Any
) -> DataStream:
    keys = choices.keys
    back = env.create_feedback("back")
    into = starts.union(back).key_by(lambda pair: pair[0] % keys)
    hops = into.process(function or Hop()).uid("hop")
    on = hops.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])).uid("on")
    back.close_with(_wait(on, Echo("way back"), choices.mutable))
    return hops.filter(lambda r: r[0] != "on").rebalance().map(lambda r: r).uid("out")
