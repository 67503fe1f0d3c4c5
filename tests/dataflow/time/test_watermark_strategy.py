"""Watermark strategies: what they generate, and what they refuse."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    Duration,
    GraphError,
    NoWatermarks,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from penstock.connectors import SequenceSource


class Collected(WatermarkOutput):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit_watermark(self, watermark: Watermark) -> None:
        self.seen.append(watermark.timestamp)

    def mark_idle(self) -> None:
        self.seen.append("idle")

    def mark_active(self) -> None:
        self.seen.append("active")


class Marked(WatermarkGenerator):
    """A punctuated generator: records that are marked advance event time."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event == "mark":
            output.emit_watermark(Watermark(event_timestamp))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


class FirstField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[0])


def emitted(generator: WatermarkGenerator) -> list[Any]:
    output = Collected()
    generator.on_periodic_emit(output)
    return output.seen


def test_bounded_out_of_orderness_is_behind_the_highest_timestamp():
    generator = WatermarkStrategy.for_bounded_out_of_orderness(5).create_generator()
    assert emitted(generator) == [MIN_WATERMARK]
    seed = 7
    draw = random.Random(seed)
    highest = -(10**6)
    for _ in range(200):
        timestamp = draw.randrange(-(10**6), 10**6)
        highest = max(highest, timestamp)
        generator.on_event(None, timestamp, Collected())
        assert emitted(generator) == [highest - 5 - 1]


def test_monotonous_timestamps_are_out_of_order_by_nothing():
    generator = WatermarkStrategy.for_monotonous_timestamps().create_generator()
    assert isinstance(generator, AscendingTimestampsWatermarks)
    generator.on_event(None, -3, Collected())
    assert emitted(generator) == [-4]


def test_each_split_has_a_generator_of_its_own():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5)
    first, second = strategy.create_generator(), strategy.create_generator()
    first.on_event(None, 100, Collected())
    assert emitted(second) == [MIN_WATERMARK]


def test_no_watermarks_are_generated_without_a_strategy():
    generator = WatermarkStrategy.no_watermarks().create_generator()
    generator.on_event(None, MAX_WATERMARK, Collected())
    assert emitted(generator) == []
    assert not WatermarkStrategy.no_watermarks().has_watermarks
    assert WatermarkStrategy.for_monotonous_timestamps().has_watermarks


def test_a_generator_of_the_program_sees_each_record():
    strategy = WatermarkStrategy.for_generator(Marked)
    generator, output = strategy.create_generator(), Collected()
    generator.on_event("record", 1, output)
    generator.on_event("mark", 2, output)
    assert output.seen == [2]
    assert strategy.max_out_of_orderness_ms is None


@pytest.mark.parametrize(
    ("limit", "milliseconds"),
    [(0, 0), (1500, 1500), (timedelta(seconds=2), 2000), (Duration.of_minutes(1), 60_000)],
)
def test_the_limit_is_a_length_of_time(limit: Any, milliseconds: int):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(limit)
    assert strategy.max_out_of_orderness_ms == milliseconds
    generator = strategy.create_generator()
    assert isinstance(generator, BoundedOutOfOrdernessWatermarks)
    assert generator.max_out_of_orderness == milliseconds


def test_methods_return_new_strategies_and_lose_nothing():
    # In PyFlink, with_idleness drops a timestamp assigner that was set before.
    plain = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
    timed = plain.with_timestamp_assigner(FirstField())
    whole = timed.with_idleness(Duration.of_seconds(9)).with_watermark_alignment("a", Time.days(1))
    assert plain.extract_timestamp is None and plain.idle_timeout_ms is None
    assert whole.max_out_of_orderness_ms == 1000
    assert whole.extract_timestamp is not None and whole.extract_timestamp((7, 8), 0) == 7
    assert whole.idle_timeout_ms == 9000
    assert whole.alignment is not None
    assert whole.alignment.max_drift_ms == 86_400_000
    assert whole.alignment.update_interval_ms == 1000


def test_a_function_can_assign_timestamps():
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda v, before: v + 1)
    assert strategy.extract_timestamp is not None and strategy.extract_timestamp(4, 0) == 5


def test_a_strategy_can_be_sent_to_workers():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_idleness(7)
    copied = pickle.loads(pickle.dumps(strategy))
    assert copied.max_out_of_orderness_ms == 5 and copied.idle_timeout_ms == 7
    assert pickle.loads(pickle.dumps(WatermarkStrategy.no_watermarks())) == WatermarkStrategy(
        NoWatermarks
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.for_bounded_out_of_orderness(-1), "max_out_of_orderness must not be negative"),
        (lambda s: s.for_bounded_out_of_orderness("5 s"), "write 5000"),
        (lambda s: s.for_bounded_out_of_orderness(0.5), "a whole number of milliseconds"),
        (lambda s: s.for_generator(Marked()), "each split has its own"),
        (lambda s: s.for_generator(lambda a: a), r"calls its function as \(\)"),
        (
            lambda s: s.no_watermarks().with_timestamp_assigner(FirstField),
            r"write .*FirstField\(\)",
        ),
        (
            lambda s: s.no_watermarks().with_timestamp_assigner(lambda value: value),
            r"as \(record, record_timestamp\), and .* takes \(value\)",
        ),
        (lambda s: s.no_watermarks().with_timestamp_assigner(7), "takes a function, not 7"),
        (lambda s: s.no_watermarks().with_idleness(0), "idle_timeout must be at least 1 ms"),
        (lambda s: s.no_watermarks().with_watermark_alignment("", 5), "a watermark group is a"),
        (lambda s: s.no_watermarks().with_watermark_alignment("a", -5), "drift must not be"),
        (lambda s: s.no_watermarks().with_watermark_alignment("a", 5, 0), "update_interval must"),
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make(WatermarkStrategy)


def test_a_stream_keeps_the_strategy_for_its_operator():
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_source(SequenceSource(1, 2), strategy)
    assert stream._outputs[0].operator.watermark_strategy is strategy
    operator = stream.assign_timestamps_and_watermarks(strategy)._outputs[0].operator
    assert operator.spec.replaces_watermarks
    assert operator.function is strategy
    for wrong in (None, "numbers", Marked()):
        with pytest.raises(GraphError, match="assign_timestamps_and_watermarks"):
            stream.assign_timestamps_and_watermarks(wrong)  # type: ignore[arg-type]
