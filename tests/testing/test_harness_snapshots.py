"""Snapshots of a harness: a function that is restored gives what it gives without a restart."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import (
    CheckpointedFunction,
    FlatMapFunction,
    GraphError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from penstock.testing import OperatorHarness


@dataclass(frozen=True)
class Reading:
    """A record class, which the snapshot must know."""

    key: str
    value: int


class Gather(KeyedProcessFunction):
    """Sums the readings of a key up to each tenth millisecond, by event time."""

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums"))
        self.newest = runtime_context.get_state(ValueStateDescriptor("newest"))

    def process_element(self, value: Reading, ctx: Any) -> Iterator[Any]:
        end = ctx.timestamp() // 10 * 10 + 9
        if end <= ctx.timer_service().current_watermark():
            yield "late", value.key, value.value
            return
        self.sums.put(end, (self.sums.get(end) or 0) + value.value)
        self.newest.update(value)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        total = self.sums.get(timestamp)
        self.sums.remove(timestamp)
        yield ctx.get_current_key(), timestamp, total, self.newest.value()


def key_of(reading: Reading) -> str:
    return reading.key


def events(seed: int) -> list[tuple[str, Any]]:
    rng = random.Random(seed)
    watermark, found = 0, []
    for number in range(60):
        if rng.random() < 0.2:
            watermark += rng.randrange(15)
            found.append(("watermark", watermark))
        time = max(0, watermark + rng.randrange(-8, 25))
        found.append(("record", (Reading(rng.choice("abcdef"), number), time)))
    return found


def feed(harness: OperatorHarness, event: tuple[str, Any]) -> list[Any]:
    kind, value = event
    if kind == "watermark":
        harness.process_watermark(value)
    else:
        harness.process_element(*value)
    return harness.extract_output_values()


@pytest.mark.parametrize("seed", range(12))
def test_a_restored_harness_goes_on_as_if_nothing_had_happened(seed: int):
    plain = OperatorHarness(Gather(), key_of, types=[Reading])
    harness = OperatorHarness(
        Gather(), key_of, types=[Reading], parallelism=random.Random(seed).randrange(1, 5)
    )
    rng = random.Random(-seed)
    for event in events(seed):
        if rng.random() < 0.15:
            harness = OperatorHarness.restore(harness.snapshot(), rng.randrange(1, 5))
        assert sorted(map(repr, feed(harness, event))) == sorted(map(repr, feed(plain, event)))
        assert harness.num_event_time_timers() == plain.num_event_time_timers()
        assert harness.num_keyed_state_entries() == plain.num_keyed_state_entries()


class CountAtTimer(KeyedProcessFunction):
    """Emits the number of records of a key when the time of each record has passed."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Reading, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


@pytest.mark.parametrize("seed", range(12))
def test_timers_of_late_records_fire_with_the_next_watermark_also_after_a_restore(seed: int):
    plain = OperatorHarness(CountAtTimer(), key_of, types=[Reading])
    harness = OperatorHarness(CountAtTimer(), key_of, types=[Reading])
    rng, restores = random.Random(-seed), 0
    for event in events(seed):
        if rng.random() < 0.2:
            harness = OperatorHarness.restore(harness.snapshot(), rng.randrange(1, 5))
            restores += 1
        assert sorted(feed(harness, event)) == sorted(feed(plain, event))
        assert harness.num_event_time_timers() == plain.num_event_time_timers()
    assert restores


def test_a_snapshot_is_what_the_state_was_then():
    harness = OperatorHarness(Gather(), key_of, types=[Reading])
    harness.process_element(Reading("a", 1), 5)
    early = harness.snapshot()
    harness.process_element(Reading("a", 2), 6)
    late = harness.snapshot()
    for snapshot, total in ((early, 1), (late, 3)):
        restored = OperatorHarness.restore(snapshot)
        restored.process_watermark(9)
        assert [row[2] for row in restored.extract_output_values()] == [total]


class Buffer(FlatMapFunction, CheckpointedFunction):
    """Holds back records, in operator state."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held"))
        self.held = list(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.held)

    def flat_map(self, value: Any) -> list[Any]:
        if value != "flush":
            self.held.append(value)
            return []
        held, self.held = self.held, []
        return held


@pytest.mark.parametrize("parallelism", [1, 3])
def test_operator_state_is_redistributed(parallelism: int):
    harness = OperatorHarness(Buffer(), parallelism=2)
    for number in range(6):
        harness.process_element(number, subtask=number % 2)
    restored = OperatorHarness.restore(harness.snapshot(), parallelism)
    for subtask in range(parallelism):
        restored.process_element("flush", subtask=subtask)
    assert sorted(restored.extract_output_values()) == list(range(6))


class Locked(MapFunction):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def map(self, value: Any) -> Any:
        with self.lock:
            return value


def test_a_function_that_cannot_be_copied_runs_in_one_subtask_only():
    harness = OperatorHarness(Locked())
    harness.process_element(1)
    assert harness.extract_output_values() == [1]
    with pytest.raises(GraphError, match="cannot be copied"):
        OperatorHarness.restore(harness.snapshot())
    again = OperatorHarness(Locked(), snapshot=harness.snapshot())
    again.process_element(2)
    assert again.extract_output_values() == [2]
    with pytest.raises(GraphError, match="lock"):
        OperatorHarness(Locked(), parallelism=2)


def test_a_program_that_does_not_fit_the_snapshot_is_refused():
    harness = OperatorHarness(
        lambda s: s.key_by(key_of).process(Gather()).uid("gather"), types=[Reading]
    )
    harness.process_element(Reading("a", 1), 5)
    with pytest.raises(GraphError, match="does not fit the snapshot"):
        OperatorHarness(lambda s: s.map(key_of), snapshot=harness.snapshot())


def test_processing_time_goes_on_after_a_restore():
    harness = OperatorHarness(Gather(), key_of, types=[Reading])
    harness.set_processing_time(50)
    assert OperatorHarness.restore(harness.snapshot()).get_processing_time() == 50
