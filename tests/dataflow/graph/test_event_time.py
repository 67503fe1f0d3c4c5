"""Event-time windows whose records have no timestamps are refused before the job starts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    AscendingTimestampsWatermarks,
    ContinuousEventTimeTrigger,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GraphError,
    PurgingTrigger,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors import SequenceSource
from penstock.dataflow.graph.compile import compile_graph

PLAIN = WatermarkStrategy.for_monotonous_timestamps()
TIMED = PLAIN.with_timestamp_assigner(lambda value, _: value)
HOUR = TumblingEventTimeWindows.of(3_600_000)


class OwnSource(SequenceSource):
    """A source of the program, which may know timestamps."""

    has_event_times = True


def compiled(stream: DataStream) -> Any:
    env = stream.get_execution_environment()
    stream.print()
    return compile_graph(env._program().graph, env.config)


def numbers(strategy: WatermarkStrategy | None = None) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_source(SequenceSource(1, 9), strategy)


@pytest.mark.parametrize("assigner", [HOUR, EventTimeSessionWindows.with_gap(5)])
def test_a_window_needs_timestamps(assigner: Any):
    for stream in (numbers(), numbers(PLAIN), numbers().assign_timestamps_and_watermarks(PLAIN)):
        with pytest.raises(GraphError, match="gives its records timestamps: call assign_time"):
            compiled(stream.map(lambda n: n).key_by(lambda n: n).window(assigner).sum(None))
        with pytest.raises(GraphError, match=r"'Window: .*' needs event time"):
            compiled(stream.window_all(assigner).sum(None))


def test_timestamps_come_from_many_places():
    keyed = numbers().key_by(lambda n: n)
    env = StreamExecutionEnvironment.get_execution_environment()
    own = env.from_source(OwnSource(1, 9))
    for stream in (
        numbers(TIMED),
        numbers().assign_timestamps_and_watermarks(TIMED).map(lambda n: n),
        keyed.window(TumblingProcessingTimeWindows.of(5)).sum(None),
        own,
    ):
        compiled(stream.key_by(lambda n: n).window(HOUR).sum(None))


def test_windows_by_count_give_no_timestamps_of_their_own():
    sums = numbers().key_by(lambda n: n).count_window(5).sum(None)
    with pytest.raises(GraphError, match="gives its records timestamps: call assign_time"):
        compiled(sums.key_by(lambda n: n).window(HOUR).sum(None))
    timed = numbers(TIMED).key_by(lambda n: n).count_window(5).sum(None)
    compiled(timed.key_by(lambda n: n).window(HOUR).sum(None))


def test_a_window_by_the_clock_needs_none():
    compiled(numbers().window_all(TumblingProcessingTimeWindows.of(5)).sum(None))


# ---- watermarks


class Endless(OwnSource):
    """A source of the program that never ends."""

    bounded = False


class WithWatermarks(Endless):
    emits_watermarks = True


OUT_OF_ORDER = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner(
    lambda value, _: value
)
NONE = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, _: value)


def endless(
    strategy: WatermarkStrategy | None,
    name: str = "numbers",
    cls: Any = Endless,
    beside: DataStream | None = None,
) -> Any:
    """Return an endless stream, in the program of another stream if there is one."""
    env = (
        StreamExecutionEnvironment.get_execution_environment()
        if beside is None
        else beside.get_execution_environment()
    )
    return env.from_source(cls(1, 9), strategy, name)


def united(stream: DataStream, strategy: WatermarkStrategy | None) -> DataStream:
    return stream.union(endless(strategy, "other", beside=stream))


def summed(stream: DataStream, trigger: Any = None, assigner: Any = HOUR) -> DataStream:
    windowed = stream.key_by(lambda n: n).window(assigner)
    return (windowed if trigger is None else windowed.trigger(trigger)).sum(None)


@pytest.mark.parametrize(
    "trigger",
    [
        None,
        ContinuousEventTimeTrigger.of(5),
        PurgingTrigger.of(EventTimeTrigger.create()),
    ],
)
def test_a_window_to_which_no_watermark_comes_is_refused(trigger: Any):
    for stream, why in (
        (endless(None), "source 'numbers' has no watermark strategy"),
        (endless(NONE), r"'numbers' has the strategy no_watermarks\(\)"),
        (
            endless(OUT_OF_ORDER).assign_timestamps_and_watermarks(NONE).name("none"),
            r"'none' has the strategy no_watermarks\(\)",
        ),
        (united(numbers(TIMED), None), "source 'other' has no"),
        (united(endless(OUT_OF_ORDER).map(abs), NONE), "'other' has the"),
    ):
        with pytest.raises(GraphError, match=f"'Window: .*' waits for watermarks, .*: {why}"):
            compiled(summed(stream, trigger))


def test_joins_to_which_no_watermark_comes_are_refused():
    first = endless(OUT_OF_ORDER)
    left, right = first.key_by(abs), endless(NONE, "other", beside=first).key_by(abs)
    for joined in (
        left.as_of_join(right),
        left.interval_join(right).between(-5, 5).process(lambda a, b: (a, b)),
        left.join(right).where(abs).equal_to(abs).window(HOUR).apply(lambda a, b: a),
        right.join_history(5),
    ):
        with pytest.raises(GraphError, match=r"'other' has the strategy no_watermarks\(\)"):
            compiled(joined)


def test_periodic_watermarks_that_are_switched_off_never_come():
    stream = endless(OUT_OF_ORDER)
    stream.get_execution_environment().get_config().set_auto_watermark_interval(0)
    with pytest.raises(GraphError, match="are periodic, and their interval is set to 0"):
        compiled(summed(stream))


def test_windows_to_which_watermarks_may_come_are_accepted():
    generated = WatermarkStrategy.for_generator(AscendingTimestampsWatermarks)
    for stream in (
        endless(OUT_OF_ORDER),
        endless(generated.with_timestamp_assigner(lambda n, _: n)),
        endless(None, cls=WithWatermarks),
        endless(NONE).assign_timestamps_and_watermarks(OUT_OF_ORDER),
        numbers(NONE).assign_timestamps_and_watermarks(NONE),  # the input ends
        united(endless(OUT_OF_ORDER), NONE.with_idleness(5)),
    ):
        compiled(summed(stream))


class EarlyTrigger(EventTimeTrigger):
    """Fires at other times, too."""


def test_windows_that_need_no_watermarks_are_accepted():
    for trigger in (CountTrigger.of(2), EarlyTrigger()):
        compiled(summed(endless(NONE), trigger))
    compiled(summed(endless(NONE), assigner=TumblingProcessingTimeWindows.of(5)))
    compiled(endless(NONE).key_by(abs).count_window(2).sum(None))
