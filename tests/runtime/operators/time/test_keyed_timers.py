"""Timers of keyed process functions, with a clock and watermarks that the test moves on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
)
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import ValueStateDescriptor
from penstock.dataflow.time import MIN_WATERMARK, NO_TIMESTAMP, TimeDomain
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.time.operator_timers import EVENT, PROCESSING
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state import KeyedBackend
from tests.runtime.operators.making import make_operator
from tests.snapshot.state.backends import Maker

CODEC = Codec(TypeRegistry())
SIDE = OutputTag("side")


class Bench:
    """One operator with a clock and watermarks of the test."""

    def __init__(
        self,
        function: Any,
        kind: OperatorSpec = specs.KEYED_PROCESS,
        backend: KeyedBackend | None = None,
    ) -> None:
        self.now = 1_000
        self.backend = backend
        if kind.keyed and backend is None:
            self.backend = KeyedBackend(
                folder=Path("/nowhere"),
                codec=CODEC,
                canonical=canonical,
                max_parallelism=128,
                groups=range(128),
            )
        context = OperatorContext(
            "the name",
            "uid",
            0,
            1,
            128,
            0,
            CODEC,
            self.backend,
            ("side",),
            now_ms=lambda: self.now,
        )
        self.operator = make_operator(kind, function, lambda record: record[0], context)
        self.operator.open()

    def process(self, *records: Any, times: list[int] | None = None) -> list[Any]:
        return self.operator.process(RecordBatch(list(records), None, times)).rows()

    def watermark(self, timestamp: int) -> list[tuple[Any, int]]:
        self.operator.context.set_watermark(timestamp)
        pieces = [*self.operator.advance_watermark(timestamp)]
        return [pair for p in pieces for pair in zip(p.rows(), p.times(), strict=True)]

    def clock(self, now: int) -> list[tuple[Any, int]]:
        self.now = now
        pieces = [*self.operator.advance_processing_time(now)]
        return [pair for p in pieces for pair in zip(p.rows(), p.times(), strict=True)]


class Timers(KeyedProcessFunction):
    """Does what each record says: (key, method of the timer service, time)."""

    def process_element(self, value, ctx):
        _, method, time = value
        getattr(ctx.timer_service(), method)(time)

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp
        yield ctx.get_current_key(), timestamp, ctx.time_domain()


EVENT_TIMER, DELETE_EVENT = "register_event_time_timer", "delete_event_time_timer"
CLOCK_TIMER, DELETE_CLOCK = "register_processing_time_timer", "delete_processing_time_timer"


def test_event_time_timers_fire_at_the_watermark_with_key_and_time():
    bench = Bench(Timers())
    bench.process(("b", EVENT_TIMER, 20), ("a", EVENT_TIMER, 10), ("a", EVENT_TIMER, 10))
    assert bench.watermark(9) == []
    assert bench.watermark(20) == [
        (("a", 10, TimeDomain.EVENT_TIME), 10),
        (("b", 20, TimeDomain.EVENT_TIME), 20),
    ]
    assert bench.watermark(30) == []


def test_a_timer_for_a_time_that_has_passed_fires_at_the_next_watermark():
    bench = Bench(Timers())
    bench.watermark(100)
    bench.process(("a", EVENT_TIMER, 50))
    assert bench.watermark(101) == [(("a", 50, TimeDomain.EVENT_TIME), 50)]


def test_processing_time_timers_fire_when_their_millisecond_is_over():
    bench = Bench(Timers())
    assert bench.operator.next_processing_time() is None
    assert not bench.operator.has_pending_timers()
    bench.process(("a", CLOCK_TIMER, 1_010), ("b", CLOCK_TIMER, 1_005))
    assert bench.operator.next_processing_time() == 1_006
    assert bench.operator.has_pending_timers()
    assert bench.clock(1_005) == []
    fired = [
        (("b", 1_005, TimeDomain.PROCESSING_TIME), NO_TIMESTAMP),
        (("a", 1_010, TimeDomain.PROCESSING_TIME), NO_TIMESTAMP),
    ]
    assert bench.clock(5_000) == fired
    assert bench.operator.next_processing_time() is None


def test_deleted_timers_do_not_fire():
    bench = Bench(Timers())
    bench.process(("a", EVENT_TIMER, 10), ("a", CLOCK_TIMER, 10), ("b", EVENT_TIMER, 10))
    bench.process(("a", DELETE_EVENT, 10), ("a", DELETE_CLOCK, 10), ("b", DELETE_EVENT, 11))
    assert bench.clock(9_000) == []
    assert bench.watermark(99) == [(("b", 10, TimeDomain.EVENT_TIME), 10)]


def test_an_operator_without_timers_has_no_tables_for_them():
    bench = Bench(Timers())
    assert bench.backend.tables.names == ()
    bench.process(("a", EVENT_TIMER, 10))
    assert bench.backend.tables.names == (EVENT,)
    bench.process(("a", CLOCK_TIMER, 10))
    assert bench.backend.tables.names == (EVENT, PROCESSING)


def test_a_timer_of_a_key_without_state_fires():
    class Forget(KeyedProcessFunction):
        def open(self, runtime_context):
            self.state = runtime_context.get_state(ValueStateDescriptor("state"))

        def process_element(self, value, ctx):
            self.state.update(value)
            ctx.timer_service().register_event_time_timer(5)
            self.state.clear()

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), self.state.value()

    bench = Bench(Forget())
    bench.process(("gone", 1))
    assert bench.watermark(5) == [(("gone", None), 5)]


def test_a_firing_sees_the_new_watermark_and_registers_further_timers():
    class Chain(KeyedProcessFunction):
        def process_element(self, value, ctx):
            assert ctx.timer_service().current_watermark() == MIN_WATERMARK
            ctx.timer_service().register_event_time_timer(10)

        def on_timer(self, timestamp, ctx):
            if timestamp < 30:
                ctx.timer_service().register_event_time_timer(timestamp + 10)
            yield timestamp, ctx.timer_service().current_watermark()

    bench = Bench(Chain())
    bench.process(("a", 0))
    assert [fired for fired, _ in bench.watermark(25)] == [(10, 25), (20, 25)]
    assert [fired for fired, _ in bench.watermark(35)] == [(30, 35)]


def test_timestamps_and_clocks_are_those_of_the_record():
    class Show(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp(), ctx.timer_service().current_processing_time()

    bench = Bench(Show())
    assert bench.process(("a",), ("b",), times=[7, NO_TIMESTAMP]) == [(7, 1_000), (None, 1_000)]
    assert bench.process(("a",)) == [(None, 1_000)]


def test_records_of_a_firing_for_side_outputs_have_the_time_of_the_timer():
    class Sides(Timers):
        def on_timer(self, timestamp, ctx):
            yield SIDE, ("side", timestamp)
            yield "main"

    bench = Bench(Sides())
    bench.process(("a", EVENT_TIMER, 10), ("b", EVENT_TIMER, 20), ("b", CLOCK_TIMER, 20))
    assert bench.watermark(99) == [("main", 10), ("main", 20)]
    ((tag, batch),) = bench.operator.side_outputs.take()
    assert (tag, batch.rows(), batch.timestamps) == ("side", [("side", 10), ("side", 20)], [10, 20])
    assert bench.clock(99_000) == [("main", NO_TIMESTAMP)]
    ((_, batch),) = bench.operator.side_outputs.take()
    assert batch.timestamps is None


def test_many_timers_fire_in_pieces_between_which_the_state_is_consistent():
    bench = Bench(Timers())
    bench.process(*((n, EVENT_TIMER, n % 7) for n in range(5_000)))
    left, pieces = 5_000, 0
    for piece in bench.operator.advance_watermark(10):
        left, pieces = left - len(piece), pieces + 1
        assert len([*bench.backend.scan(EVENT)]) == left
    assert left == 0
    assert pieces == 5


def test_a_timer_on_a_stream_without_keys_is_refused():
    class Unkeyed(ProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp(), ctx.timer_service().current_processing_time()
            getattr(ctx.timer_service(), value[1])(5)

    for method in EVENT_TIMER, CLOCK_TIMER, DELETE_EVENT, DELETE_CLOCK:
        with pytest.raises(GraphError, match=r"timers exist only on a keyed stream: use key_by"):
            Bench(Unkeyed(), specs.PROCESS).process(("a", method))


@pytest.mark.parametrize("time", [None, 1.5, "7", True, 2**63])
def test_the_time_of_a_timer_is_a_whole_number(time):
    for method in EVENT_TIMER, CLOCK_TIMER, DELETE_EVENT, DELETE_CLOCK:
        with pytest.raises(GraphError, match="is a whole number of milliseconds"):
            Bench(Timers()).process(("a", method, time))


def test_the_time_of_a_timer_may_be_a_whole_number_of_another_type():
    class Seven:
        def __index__(self):
            return 7

    bench = Bench(Timers())
    bench.process(("a", EVENT_TIMER, Seven()), ("a", EVENT_TIMER, 2**63 - 1))
    bench.process(("a", DELETE_EVENT, 7))
    assert [timestamp for _, timestamp in bench.watermark(2**63 - 1)] == [2**63 - 1]


class _Counting:
    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("count"))

    def count(self):
        self.state.update((self.state.value() or 0) + 1)
        return self.state.value()


def test_rich_functions_on_keyed_streams_have_state_of_the_current_key():
    class Map(_Counting, MapFunction):
        def map(self, value):
            return value, self.count()

    class FlatMap(_Counting, FlatMapFunction):
        def flat_map(self, value):
            return [value] * self.count()

    class Filter(_Counting, FilterFunction):
        def filter(self, value):
            return self.count() == 2

    records = ("a",), ("b",), ("a",)
    assert Bench(Map(), specs.KEYED_MAP).process(*records, times=[1, 2, 3]) == [
        (("a",), 1),
        (("b",), 1),
        (("a",), 2),
    ]
    assert Bench(FlatMap(), specs.KEYED_FLAT_MAP).process(*records) == [
        ("a",),
        ("b",),
        ("a",),
        ("a",),
    ]
    assert Bench(Filter(), specs.KEYED_FILTER).process(*records) == [("a",)]


def test_timers_that_were_due_while_the_job_was_down_fire_once_after_the_restore(tmp_path):
    maker = Maker(tmp_path)
    bench = Bench(Timers(), backend=maker(inline_threshold=0))
    bench.process(("a", CLOCK_TIMER, 1_010), ("b", CLOCK_TIMER, 90_000), ("a", EVENT_TIMER, 70))
    handle = maker.snapshot(bench.backend, 1)
    assert len(bench.clock(1_020)) == 1  # which the failure undoes
    restored = Bench(Timers(), backend=maker.restored(handle, inline_threshold=0))
    assert restored.operator.next_processing_time() == 1_011
    assert [fired for (fired, *_), _ in restored.clock(50_000)] == ["a"]
    assert restored.clock(60_000) == []
    assert [fired for (fired, *_), _ in restored.clock(90_001)] == ["b"]
    assert restored.watermark(80) == [(("a", 70, TimeDomain.EVENT_TIME), 70)]
    for backend in maker.made:
        backend.close()


def test_timers_left_at_the_end_of_the_input_are_dropped():
    bench = Bench(Timers())
    bench.process(("a", CLOCK_TIMER, 1_010), ("a", EVENT_TIMER, 70))
    bench.operator.drop_timers()
    assert not bench.operator.has_pending_timers()
    assert not [*bench.backend.scan(EVENT), *bench.backend.scan(PROCESSING)]
