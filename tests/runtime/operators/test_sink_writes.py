"""A sink whose writes have a large fixed cost gets many records in one, and no queue grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.operators.sink_writes import MOST, PROBE_EVERY, WriteSizer
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from tests.runtime.network.flow import Flow, spend

#: (records, process time) of each write of the sink that runs now.
WRITES: list[list[Any]] = []


class Costly(Sink):
    """Takes some time for each write, and some for each record."""

    def __init__(self, write_seconds: float, record_seconds: float = 0.0) -> None:
        self.write_seconds, self.record_seconds = write_seconds, record_seconds

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return CostlyWriter(self)


class CostlyWriter(SinkWriter):
    def __init__(self, sink: Costly) -> None:
        self.sink = sink

    def write(self, batch: list[Any]) -> None:
        spend(self.sink.write_seconds + len(batch) * self.sink.record_seconds)
        WRITES.append(list(batch))


@pytest.fixture(autouse=True)
def no_writes() -> None:
    WRITES.clear()


def flow(
    folder: Path, sink: Sink, function: Callable[[Any], Any] | None = None, parallelism: int = 2
) -> Flow:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    stream = env.from_generator(lambda n: n)
    if function is not None:
        stream = stream.rebalance().map(function)
    stream.rebalance().sink_to(sink).name("sink")
    return Flow(env, folder / "snapshots")


def later_writes() -> list[int]:
    """The sizes of the writes after the first third of them."""
    return [len(records) for records in WRITES[len(WRITES) // 3 :]]


@pytest.mark.parametrize("write_seconds", [0.0015, 0.02, 0.1])
def test_a_write_with_a_fixed_cost_gets_many_records(tmp_path: Path, write_seconds: float):
    with flow(tmp_path, Costly(write_seconds)) as running:
        running.run(200 * write_seconds)
        snapshots = []
        for _ in range(5):
            running.run(10 * write_seconds)
            snapshots.append(running.snapshot())
        assert sum(later_writes()) / len(later_writes()) > 500
        # The barrier waits for what is in flight, and for a write or two.
        assert max(snapshots) < 0.25 + 4 * write_seconds


def test_half_of_a_write_is_for_its_records_if_they_cost_something(tmp_path: Path):
    with flow(tmp_path, Costly(0.02, 0.0005)) as running:
        running.run(10)
        sizes = later_writes()
        assert 20 <= sorted(sizes)[len(sizes) // 2] <= 80
        # 40 records in 40 ms would be the best without a limit of 1 ms; one by one it is 49.
        assert running.records("sink")[0] > 0.7 * 2 * 10 * 1000
        assert running.snapshot() < 0.3


def test_records_that_are_slow_to_write_are_not_gathered(tmp_path: Path):
    with flow(tmp_path, Costly(0.0, 0.01)) as running:
        running.run(10)
        assert max(later_writes()) <= 2
        assert max(running.snapshot() for _ in range(3)) < 0.25


def test_not_more_is_in_flight_behind_a_slow_function(tmp_path: Path):
    def slow(record: Any) -> Any:
        spend(0.002)
        return record

    with flow(tmp_path, Costly(0.02), slow) as running:
        durations = []
        for _ in range(6):
            running.run(0.5)
            durations.append(running.snapshot())
        assert max(durations) < 0.35
        assert sum(later_writes()) / len(later_writes()) >= 5


def test_a_slow_function_in_the_task_of_the_sink_does_not_fill_the_queue(tmp_path: Path):
    def slow(record: Any) -> Any:
        spend(0.002)
        return record

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    numbers = env.from_generator(lambda n: n).rebalance()
    numbers.map(slow).name("slow").sink_to(Costly(0.02)).name("sink")
    with Flow(env, tmp_path / "snapshots") as running:
        durations = []
        for _ in range(6):
            running.run(0.5)
            durations.append(running.snapshot())
        assert max(durations) < 0.35
        # Writes take at most half of the time of the task.
        assert running.records("slow")[0] > 0.4 * 2 * running.now / 0.002


def test_a_fast_sink_gets_each_slice_at_once(tmp_path: Path):
    with flow(tmp_path, Costly(0.00001, 1e-6)) as running:
        running.run(1)
        assert running.records("sink")[0] == sum(map(len, WRITES))


def test_no_record_is_lost_or_changes_its_place(tmp_path: Path):
    with flow(tmp_path, Costly(0.02), parallelism=1) as running:
        for _ in range(5):
            running.run(0.3)
            before = running.records("sink")[0]
            running.snapshot()
            assert sum(map(len, WRITES)) >= before, "records behind which a barrier went wait"
        for task in running.tasks:
            task.flush()
        written = [record for records in WRITES for record in records]
        assert written == list(range(len(written)))
        assert len(written) == running.records("sink")[0]


def test_an_idle_task_waits_for_records_as_long_as_the_last_write_took():
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    class Slow(SinkWriter):
        def write(self, batch: list[Any]) -> None:
            clock.now += 0.02
            WRITES.append(batch)

    def process(*records: Any) -> None:
        sink.process(RecordBatch(list(records)))

    clock = Clock()
    context = OperatorContext("sink", "s", 0, 1, 128, 0, Codec(TypeRegistry()))
    sink = SinkOperator(Slow(), context, None, clock)
    sink.measure()
    process(1)
    process(2)
    process(3)
    sink.flush()
    assert WRITES == [[1], [2]], "the first shows that writes are slow, the second is a probe"
    assert sink.write_delay == pytest.approx(0.02)
    clock.now += 0.019
    sink.flush()
    assert len(WRITES) == 2
    clock.now += 0.0011
    assert sink.write_delay == 0
    sink.flush()
    assert WRITES[2:] == [[3]]
    assert sink.write_delay is None
    process(4)
    assert sink.prepare(1) is None
    process(5)
    sink.end()
    assert WRITES[3:] == [[4], [5]], "neither a barrier nor the end waits"


def test_columns_do_not_overtake_gathered_records():
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    class Slow(SinkWriter):
        def __init__(self) -> None:
            self.write_columns = lambda batch: WRITES.append(batch.to_pylist())

        def write(self, batch: list[Any]) -> None:
            clock.now += 0.02
            WRITES.append(batch)

    clock = Clock()
    context = OperatorContext("sink", "s", 0, 1, 128, 0, Codec(TypeRegistry()))
    sink = SinkOperator(Slow(), context, None, clock)
    sink.measure()
    for number in range(3):
        sink.process(RecordBatch([number]))
    assert WRITES == [[0], [1]]
    sink.process(ArrowBatch(pa.record_batch({"n": [3]})))
    assert WRITES == [[0], [1], [2], [{"n": 3}]]


# ---- the sizes by themselves


def sizes(
    cost: Callable[[int], float], writes: int, sizer: WriteSizer | None = None
) -> tuple[list[int], WriteSizer]:
    """Return the sizes of writes of a sink that always has enough records."""
    sizer = sizer or WriteSizer()
    found = []
    for _ in range(writes):
        size = sizer.limit if sizer.gathers else 1
        found.append(size)
        sizer.wrote(size, cost(size))
    return found, sizer


def test_writes_grow_as_long_as_their_records_take_less_than_their_fixed_cost():
    found, _ = sizes(lambda n: 0.02, 30)
    assert found[-1] == MOST
    found, _ = sizes(lambda n: 0.02 + n * 0.001, 200)
    steady = [n for n in found[20:] if n > 5]
    assert min(steady) >= 10 and max(steady) <= 60
    found, _ = sizes(lambda n: n * 0.01, 300)
    assert max(found) == 2


def test_one_long_write_halves_the_size_for_a_moment():
    _, sizer = sizes(lambda n: 0.02, 30)
    sizer.wrote(sizer.limit, 3.0)
    assert sizer.limit == MOST // 2
    found, _ = sizes(lambda n: 0.02, 3, sizer)
    assert found[-1] == MOST


def test_a_fixed_cost_that_grows_is_found_out():
    _, sizer = sizes(lambda n: 0.02, 30)
    found, sizer = sizes(lambda n: 0.5, 2 * PROBE_EVERY, sizer)
    assert found[-1] == MOST
    _, sizer = sizes(lambda n: 0.0001, 2, sizer)
    assert not sizer.gathers
