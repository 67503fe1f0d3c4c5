"""Jobs with asynchronous requests, in the process of the test."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    CheckpointingMode,
    JobError,
    ProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
)


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_restart_strategy(RestartStrategies.no_restart())
    return env.set_parallelism(parallelism).set_in_process(True)


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return list(results)


class InAsyncio(AsyncFunction):
    """Needs a running event loop in `open`, as the session of an HTTP client does."""

    def __init__(self) -> None:
        self.loops: list[Any] = []

    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.loop, self.thread = asyncio.get_running_loop(), threading.current_thread()
        self.lock = asyncio.Lock()
        assert self.thread is not threading.main_thread()

    async def async_invoke(self, value: int) -> list[int]:
        async with self.lock:
            await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        return [value, -value]

    async def close(self) -> None:  # type: ignore[override]
        assert asyncio.get_running_loop() is self.loop
        CLOSED.append(self.thread)


CLOSED: list[threading.Thread] = []


async def in_trio(value: int) -> list[int]:
    await trio.sleep(0.0001 * (value % 7))
    return [value, -value]


def in_threads(value: int) -> list[int]:
    assert threading.current_thread() is not threading.main_thread()
    return [value, -value]


def both(numbers: Any) -> list[int]:
    return sorted(sign * n for n in numbers for sign in (1, -1))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("function", "run_in"),
    [(InAsyncio(), "asyncio"), (in_trio, "trio"), (in_threads, "threads")],
)
def test_requests_run_where_the_program_says(function: Any, run_in: Any, ordered: bool) -> None:
    CLOSED.clear()
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    stream = wait(environment().from_sequence(1, 300), function, Time.seconds(60), run_in=run_in)
    assert sorted(collected(stream)) == both(range(1, 301))
    if run_in == "asyncio":
        assert len(CLOSED) == 2
        for thread in CLOSED:
            thread.join(60)
            assert not thread.is_alive()


def test_ordered_results_have_the_order_of_their_records() -> None:
    async def sleepy(value: int) -> list[int]:
        await asyncio.sleep(random.random() * 0.01)
        return [value]

    stream = environment(1).from_sequence(1, 500)
    waited = AsyncDataStream.ordered_wait(stream, sleepy, 60_000, 20)
    assert collected(waited) == list(range(1, 501))


# ---- event time


class EachRecord(WatermarkGenerator):
    """Emits a watermark behind each tenth record."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        if event % 10 == 9:
            output.emit_watermark(Watermark(event_timestamp))

    def on_periodic_emit(self, output: Any) -> None:
        pass


class SeeWatermark(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        watermark = ctx.timer_service().current_watermark()
        assert ctx.timestamp() == value
        yield value, watermark


@pytest.mark.parametrize("ordered", [True, False])
def test_no_result_crosses_a_watermark(ordered: bool) -> None:
    async def sleepy(value: int) -> list[int]:
        await trio.sleep(random.random() * 0.02)
        return [value]

    strategy = WatermarkStrategy.for_generator(EachRecord)
    strategy = strategy.with_timestamp_assigner(lambda value, _: value)
    timed = environment(1).from_sequence(0, 399).assign_timestamps_and_watermarks(strategy)
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    seen = collected(wait(timed, sleepy, 60_000, 50, run_in="trio").process(SeeWatermark()))
    assert sorted(value for value, _ in seen) == list(range(400))
    # Neither too late nor too early: the watermark behind the ten records before.
    for value, watermark in seen:
        if value >= 10:
            assert watermark == value // 10 * 10 - 1
    values = [value for value, _ in seen]
    assert (values == sorted(values)) == ordered


# ---- errors and timeouts


def test_an_error_shows_the_users_own_traceback_first() -> None:
    async def lookup(value: int) -> list[int]:
        await asyncio.sleep(0)
        if value == 3:
            raise LookupError("no user 3")
        return [value]

    stream = AsyncDataStream.ordered_wait(environment().from_sequence(1, 5), lookup, 60_000)
    with pytest.raises(JobError) as caught:
        collected(stream.name("lookup"))
    text = str(caught.value)
    assert text.startswith("Traceback (most recent call last)")
    first = text.splitlines()[1]
    assert __file__ in first and "lookup" in first
    assert 'raise LookupError("no user 3")' in text
    assert "LookupError in operator 'lookup'" in text and "record:   3" in text


def test_an_error_in_a_thread_has_no_frames_of_the_engine() -> None:
    def lookup(value: int) -> list[int]:
        raise LookupError("nothing")

    stream = environment().from_sequence(1, 5)
    stream = AsyncDataStream.ordered_wait(stream, lookup, 60_000, run_in="threads")
    with pytest.raises(JobError) as caught:
        collected(stream)
    assert __file__ in str(caught.value).splitlines()[1]


@pytest.mark.parametrize("run_in", ["asyncio", "trio"])
def test_a_request_that_hangs_times_out(run_in: Any) -> None:
    class Hangs(AsyncFunction):
        async def async_invoke(self, value: int) -> list[Any]:
            await (asyncio.Event().wait() if run_in == "asyncio" else trio.sleep_forever())
            return []

        def timeout(self, value: int) -> list[Any]:
            return [("timed out", value)]

    stream = environment().from_sequence(1, 20)
    waited = AsyncDataStream.unordered_wait(stream, Hangs(), 20, 5, run_in=run_in)
    assert sorted(collected(waited)) == [("timed out", n) for n in range(1, 21)]


def test_a_failing_service_is_asked_again() -> None:
    tries: dict[int, int] = {}

    async def flaky(value: int) -> list[Any]:
        tries[value] = tries.get(value, 0) + 1
        if tries[value] <= value % 3:
            raise ConnectionError("not now")
        return [(value, tries[value])]

    strategy = AsyncRetryStrategy.exponential_backoff(
        5, 1, 10, 2, exception_predicate=lambda error: isinstance(error, ConnectionError)
    )
    stream = environment(1).from_sequence(1, 30)
    waited = AsyncDataStream.ordered_wait_with_retry(stream, flaky, 60_000, strategy)
    assert collected(waited) == [(n, n % 3 + 1) for n in range(1, 31)]


# ---- snapshots


@pytest.mark.parametrize("mode", ["exactly once", "unaligned", "synchronous", "at least once"])
def test_a_snapshot_does_not_wait_for_requests(tmp_path: Path, mode: str) -> None:
    """No request ends before there is a snapshot; more records wait than may be in flight."""

    async def patient(value: int, seen: list[bool] = []) -> list[int]:  # noqa: B006
        while not seen:
            await asyncio.sleep(0.01)
            if any(tmp_path.rglob("manifest")):
                seen.append(True)
        return [value]

    env = environment(2)
    env.enable_checkpointing(20, CheckpointingMode(mode.replace(" ", "_")))
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    numbers = env.from_sequence(1, 300)
    waited = AsyncDataStream.unordered_wait(numbers.rebalance(), patient, 0, 2)
    assert sorted(collected(waited)) == list(range(1, 301))
