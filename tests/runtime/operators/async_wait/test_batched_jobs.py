"""Jobs with calls for many records, in the process of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import (
    AsyncDataStream,
    AsyncRetryStrategy,
    BatchedFunction,
    CheckpointingMode,
    IterableSource,
    JobError,
    RequestCache,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
)
from tests.processes.harness import PATIENCE


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_restart_strategy(RestartStrategies.no_restart())
    return env.set_parallelism(parallelism).set_in_process(True)


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return list(results)


class InAsyncio(BatchedFunction):
    """Needs a running event loop in `open`, as the session of an HTTP client does."""

    async def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()

    async def invoke_batch(self, values: list[int]) -> list[int]:
        async with self.lock:
            await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        return [-value for value in values]

    async def close(self) -> None:  # type: ignore[override]
        assert asyncio.get_running_loop() is self.loop
        CLOSED.append(threading.current_thread())


class InOneThread(BatchedFunction):
    """Stands for a model that must be used in the thread that has loaded it."""

    def open(self, runtime_context: Any) -> None:
        self.thread = threading.current_thread()

    def invoke_batch(self, values: list[int]) -> list[int]:
        assert threading.current_thread() is self.thread
        return [-value for value in values]

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        CLOSED.append(self.thread)


CLOSED: list[threading.Thread] = []


async def in_trio(values: list[int]) -> list[int]:
    await trio.sleep(0.0001 * len(values))
    return [-value for value in values]


def in_threads(values: list[int]) -> list[int]:
    assert threading.current_thread() is not threading.main_thread()
    return [-value for value in values]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("function", "run_in"),
    [
        (InAsyncio(), None),
        (in_trio, "trio"),
        (in_threads, None),
        (InOneThread(), "thread"),
    ],
)
def test_calls_run_where_the_program_says(function: Any, run_in: Any, ordered: bool) -> None:
    CLOSED.clear()
    numbers = environment().from_sequence(1, 300)
    stream = AsyncDataStream.batched(
        numbers, function, Time.seconds(60), batch_size=20, ordered=ordered, run_in=run_in
    )
    assert sorted(collected(stream)) == list(range(-300, 0))
    if isinstance(function, BatchedFunction):
        assert len(CLOSED) == 2
        for thread in CLOSED:
            thread.join(60)
            assert not thread.is_alive()


#: What functions of a job have noted: the job runs in this process, and refers to this module.
SIZES: list[int] = []
ASKED: list[int] = []
RESULTS: list[Any] = []
ANSWERED, OVER = threading.Event(), threading.Event()


def note_sizes(values: list[int]) -> list[int]:
    SIZES.append(len(values))
    return values


def test_calls_have_at_most_as_many_records_as_the_program_says() -> None:
    SIZES.clear()
    numbers = environment(1).from_sequence(1, 1000)
    stream = AsyncDataStream.batched(numbers, note_sizes, 0, batch_size=64, batch_wait=60_000)
    assert collected(stream) == list(range(1, 1001))
    assert sorted(SIZES) == [40] + [64] * 15  # the last one does not wait for a minute


def slowly() -> Iterator[str]:
    yield "a"
    assert ANSWERED.wait(PATIENCE), "the first record waited for the second one"
    yield "b"


def note_answer(text: str) -> str:
    ANSWERED.set()
    return text


def test_few_records_of_an_endless_stream_do_not_wait_for_others() -> None:
    async def answer(values: list[str]) -> list[str]:
        return [value.upper() for value in values]

    ANSWERED.clear()
    stream = environment(1).from_source(IterableSource(slowly))
    stream = AsyncDataStream.batched(stream, answer, 0, batch_size=1000, batch_wait=1)
    assert collected(stream.map(note_answer)) == ["A", "B"]


@pytest.mark.parametrize("mode", list(RuntimeExecutionMode))
def test_batch_mode_gives_the_same_results(mode: RuntimeExecutionMode) -> None:
    env = environment()
    env.set_runtime_mode(mode)
    tries: dict[int, int] = {}

    def flaky(values: list[int]) -> list[Any]:
        for value in values:
            tries[value] = tries.get(value, 0) + 1
        return [OSError("busy") if tries[v] <= v % 2 else [v] * (v % 3) for v in values]

    strategy = AsyncRetryStrategy.fixed_delay(5, 1, exception_predicate=lambda error: True)
    keyed = env.from_sequence(1, 200).key_by(lambda n: n % 10)
    stream = AsyncDataStream.batched(
        keyed, flaky, 60_000, flatten=True, batch_size=7, batch_wait=2, retry=strategy
    )
    assert sorted(collected(stream)) == sorted(n for n in range(1, 201) for _ in range(n % 3))


def name_customers(orders: list[tuple[int, int]]) -> list[str]:
    ASKED.extend(customer for _, customer in orders)
    return [f"customer {customer}" for _, customer in orders]


def note_result(result: Any) -> Any:
    RESULTS.append(result)
    return result


def test_a_cache_saves_calls_and_its_metrics_say_so() -> None:
    ASKED.clear()
    RESULTS.clear()
    env = environment(1)
    orders = env.from_collection([(order, order % 5) for order in range(100)])
    named = AsyncDataStream.batched(
        orders,
        name_customers,
        0,
        cache=RequestCache(key=lambda order: order[1]),
        combine=lambda order, customer: (order[0], customer),
    )
    named.name("name").map(note_result).print()
    result = env.execute("cache")
    assert list(RESULTS) == [(order, f"customer {order % 5}") for order in range(100)]
    assert sorted(ASKED) == [0, 1, 2, 3, 4]
    assert result.metric("numCacheHits") == 95 and result.metric("numRecordsInCalls") == 5
    assert result.metric("numCalls") >= 1 and result.metric("numCallsRepeated") == 0
    assert result.metric("numCallsTimedOut") == 0


def test_an_error_shows_the_users_own_traceback_first() -> None:
    def lookup(values: list[int]) -> list[int]:
        raise LookupError("no table")

    stream = AsyncDataStream.batched(environment(1).from_sequence(1, 5), lookup, 0, batch_size=5)
    with pytest.raises(JobError) as caught:
        collected(stream.name("lookup"))
    text = str(caught.value)
    assert __file__ in text.splitlines()[1] and "LookupError in operator 'lookup'" in text
    assert "record:   1, the first of 5" in text


def test_an_error_of_one_record_names_it() -> None:
    async def lookup(values: list[int]) -> list[Any]:
        async def one(value: int) -> int:
            if value == 3:
                raise LookupError("no user 3")
            return value

        return await asyncio.gather(*map(one, values), return_exceptions=True)

    stream = AsyncDataStream.batched(environment(1).from_sequence(1, 5), lookup, 0, batch_size=5)
    with pytest.raises(JobError, match="record:   3") as caught:
        collected(stream.name("lookup"))
    assert 'raise LookupError("no user 3")' in str(caught.value)


class Hangs(BatchedFunction):
    def invoke_batch(self, values: list[int]) -> list[Any]:
        OVER.wait()
        return values

    def timeout(self, values: list[int]) -> list[Any]:
        return [("timed out", value) for value in values]


@pytest.mark.parametrize("run_in", ["threads", "thread"])
def test_a_call_that_hangs_times_out_and_does_not_hold_up_the_end(run_in: Any) -> None:
    OVER.clear()
    numbers = environment(1).from_sequence(1, 20)
    stream = AsyncDataStream.batched(numbers, Hangs(), 20, batch_size=20, run_in=run_in)
    try:
        assert sorted(collected(stream)) == [("timed out", n) for n in range(1, 21)]
    finally:
        OVER.set()


@pytest.mark.parametrize("mode", ["exactly once", "unaligned", "synchronous", "at least once"])
def test_a_snapshot_does_not_wait_for_calls(tmp_path: Path, mode: str) -> None:
    """No call ends before there is a snapshot; more records wait than may be in flight."""

    async def patient(values: list[int], seen: list[bool] = []) -> list[int]:  # noqa: B006
        while not seen:
            await asyncio.sleep(0.01)
            if any(tmp_path.rglob("manifest")):
                seen.append(True)
        return values

    env = environment(2)
    env.enable_checkpointing(20, CheckpointingMode(mode.replace(" ", "_")))
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    numbers = env.from_sequence(1, 300)
    waited = AsyncDataStream.batched(numbers.rebalance(), patient, 0, 5, batch_size=3)
    assert sorted(collected(waited)) == list(range(1, 301))
