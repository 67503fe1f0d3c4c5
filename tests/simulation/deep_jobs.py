"""Programs with several levels of tasks that log their steps, for restarts of single tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock import (
    DataStream,
    GeneratorSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

KEYS = 7
ODD, LATE = OutputTag("odd"), OutputTag("late")
Build = Callable[[StreamExecutionEnvironment, DataStream], DataStream]


class Numbered(KeyedProcessFunction):
    """Numbers the records of a key. So the output of tasks behind it depends on their order.

    Each record comes out again by a timer, by processing time or at the end of the input.

    Arguments:
        sides: whether records of odd numbers also go to a side output.
    """

    def __init__(self, *, sides: bool = False) -> None:
        self.sides = sides

    def open(self, context: RuntimeContext) -> None:
        expires = ValueStateDescriptor("expires")
        config = StateTtlConfig.new_builder(Time.hours(1)).cleanup_full_snapshot()
        expires.enable_time_to_live(config.build())
        self.count = context.get_state(ValueStateDescriptor("count"))
        self.expires = context.get_state(expires)
        self.waiting = context.get_map_state(MapStateDescriptor("waiting"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        self.expires.update(number)
        id = value[0]
        # A record may come several times, but each has a number of its own.
        self.waiting.put(number, id)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() // 5 * 5 + 5)
        timers.register_event_time_timer(1 << 50)  # which fires at the end of the input
        if self.sides and id % 2:
            yield ODD, (id, number)
        yield id, number

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        del timestamp, ctx
        assert self.expires.value() == self.count.value()
        for number, id in list(self.waiting.items()):
            yield -1 - id, number
        self.waiting.clear()


class Together(KeyedCoProcessFunction):
    """Numbers the records of both inputs together."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))

    def _number(self, value: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], self.count.value()

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._number(value)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._number(value)


class Members(ProcessWindowFunction):
    """Emits the records of a window with their places."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        for place, element in enumerate(elements):
            yield element[0], place


def _key(record: Any) -> Any:
    # The number decides on the key, so an order that changes also changes where records go.
    return (record[0] + record[1]) % KEYS


def _ids(stream: DataStream) -> DataStream:
    return stream.map(lambda record: record[0])


def _start(stream: DataStream) -> DataStream:
    return stream.map(lambda i: (i, 0))


def three_levels(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Three keyed levels, whose keys depend on the order of the level before."""
    first = _start(stream).key_by(_key).process(Numbered())
    kept = first.filter(lambda r: r[0] >= 0)
    second = kept.key_by(_key).process(Numbered()).filter(lambda r: r[0] >= 0)
    return _ids(second.key_by(_key).process(Numbered()))


def sides(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """A level with a side output, a union of its outputs, and a level with two inputs behind it."""
    first = _start(stream).key_by(_key).process(Numbered(sides=True))
    odd = first.get_side_output(ODD).map(lambda r: r).disable_chaining()
    united = first.filter(lambda r: r[0] >= 0).union(odd).map(lambda r: r)
    other = env.from_source(GeneratorSource(lambda i: i, 60), None, "others")
    both = united.key_by(_key).connect(_start(other).key_by(_key)).process(Together())
    return _ids(both.key_by(_key).process(Numbered()))


def windows(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Windows by event time with late records, and windows by processing time behind them."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.milliseconds(10))
    timed = _start(stream).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda record, _: record[0] * 5)
    )
    placed = (
        timed.key_by(_key)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
        .side_output_late_data(LATE)
        .process(Members())
    )
    late = placed.get_side_output(LATE)
    counted = placed.union(late).key_by(_key).process(Numbered())
    return _ids(counted.key_by(_key).process(Numbered()))


DEEP: dict[str, Build] = {"three levels": three_levels, "sides": sides, "windows": windows}
