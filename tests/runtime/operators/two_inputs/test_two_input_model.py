"""Operators with two inputs beside a naive model, under random input, restores and rescaling.

Goal: keyed state that both inputs share, broadcast state, timers and side outputs do what a plain
dict does, however the job is restored in between.

Method: several subtasks of one operator get random records, broadcast records and watermarks. At
random moments all of them are captured, and as many subtasks as are drawn go on from the handles.
The model is one dict for all keys. Whatever a step emits must be the same for both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.graph.key_groups import key_group, key_group_range, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.registry import build_operator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state.operator_state import (
    OperatorStateBackend,
    read_operator_state,
    redistribute,
)
from tests.sizes import sized
from tests.snapshot.state.backends import GROUPS, Maker, drive

CODEC = Codec(TypeRegistry())
TOTAL, SEEN = ValueStateDescriptor("total"), ListStateDescriptor("seen")
FACTORS = MapStateDescriptor("factors")
LATE = OutputTag("late")
SEEDS = range(sized(5, 60))


class Shared(KeyedCoProcessFunction):
    """Adds what comes on the first input; the second sets a timer that reports the sum."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value[1])
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield LATE, (value, ctx.timestamp())
        yield ctx.get_current_key(), self.total.value()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key(), timestamp, self.total.value()


class Factors(KeyedBroadcastProcessFunction):
    """Adds records times the factor of their kind; a broadcast factor may also scale all sums."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)
        self.seen = runtime_context.get_list_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Any:
        factors = ctx.get_broadcast_state(FACTORS)
        self.total.update((self.total.value() or 0) + value[1] * (factors.get(value[1] % 3) or 1))
        self.seen.add(value[1])
        ctx.timer_service().register_event_time_timer(value[1])
        yield ctx.get_current_key(), self.total.value(), sorted(factors.items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        kind, factor = value
        if factor:
            ctx.get_broadcast_state(FACTORS).put(kind, factor)
            return
        ctx.get_broadcast_state(FACTORS).remove(kind)
        emitted: list[Any] = []
        ctx.apply_to_keyed_state(TOTAL, lambda key, state: state.update(state.value() + kind))
        ctx.apply_to_keyed_state(
            SEEN, lambda key, state: emitted.append(("seen", key, list(state.get())))
        )
        yield from emitted

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        factors = sorted(ctx.get_broadcast_state(FACTORS).items())
        yield "timer", ctx.get_current_key(), timestamp, self.total.value(), factors


class Subtasks:
    """All subtasks of one operator, which are captured and restored together."""

    def __init__(self, kind: OperatorSpec, function: type, root: Path) -> None:
        self.kind, self.function, self.root = kind, function, root
        self.maker = Maker(root)
        self.number = 0
        self.tasks: list[Any] = []
        self.start(2, [], [])

    def start(self, parallelism: int, keyed: list[Any], states: list[Any]) -> None:
        """Start subtasks from handles; there are none at first."""
        rescaled = parallelism != len(self.tasks)
        self.tasks = []
        for subtask in range(parallelism):
            options = {
                "groups": key_group_range(subtask, GROUPS, parallelism),
                "codec": CODEC,
                "inline_threshold": 0 if self.number % 4 == 1 else 1 << 16,
            }
            backend = self.maker.restored(*keyed, **options) if keyed else self.maker(**options)
            operator_state = OperatorStateBackend("op", CODEC)
            before = {
                index: read_operator_state(handle, self.root)
                for index, handle in enumerate(states)
                if handle is not None
            }
            operator_state.restore(redistribute(before, subtask, parallelism, rescaled=rescaled))
            context = OperatorContext(
                "op",
                "uid",
                subtask,
                parallelism,
                GROUPS,
                0,
                CODEC,
                backend,
                ("late",),
                operator_state,
            )
            operator = Operator(0, self.kind, "op", self.function())
            operator.key_selector = operator.second_key_selector = lambda value: value[0]
            if self.kind.name.endswith("broadcast_process"):
                operator.broadcast_states = (FACTORS,)
            task = build_operator(OperatorPlace(operator, context))
            task.initialize_state()
            task.open()
            self.tasks.append(task)

    def restart(self, parallelism: int) -> None:
        """Capture all subtasks, and go on with another number of them."""
        self.number += 1
        keyed, states = [], []
        for index, task in enumerate(self.tasks):
            keyed.append(self.maker.snapshot(task.context.backend, self.number))
            captured = task.capture_operator_state(self.number, 0)
            path = self.root / f"{self.number}-{index}.state"
            threshold = 0 if self.number % 4 == 1 else 1 << 16
            states.append(None if captured is None else drive(captured.write(path, threshold))[0])
        self.start(parallelism, keyed, states)

    def send(self, input: int, record: Any, timestamp: int) -> Counter[str]:
        """Process one record in the subtask of its key, and return what is emitted."""
        group = key_group(canonical(record[0]), GROUPS)
        task = self.tasks[subtask_of_key_group(group, GROUPS, len(self.tasks))]
        return self._emitted(task, input, record, timestamp)

    def broadcast(self, record: Any) -> Counter[str]:
        """Process one broadcast record in all subtasks."""
        found: Counter[str] = Counter()
        for task in self.tasks:
            found += self._emitted(task, 1, record, 0)
        return found

    def watermark(self, timestamp: int) -> Counter[str]:
        """Advance the watermark of all subtasks."""
        found: Counter[str] = Counter()
        for task in self.tasks:
            task.context.set_watermark(timestamp)
            for piece in task.advance_watermark(timestamp):
                found.update(map(repr, zip(piece.rows(), piece.times(), strict=True)))
        return found

    def _emitted(self, task: Any, input: int, record: Any, timestamp: int) -> Counter[str]:
        task.select_input(input)
        out = task.process(RecordBatch([record], None, [timestamp]))
        found = Counter(map(repr, out.rows()))
        for tag, batch in task.side_outputs.take():
            found.update(repr((tag, row)) for row in batch.rows())
        return found


def fired(timers: set[tuple[int, Any]], watermark: int) -> Iterator[tuple[int, Any]]:
    """Yield and remove the timers of a model that are due."""
    due = [timer for timer in timers if timer[0] <= watermark]
    timers.difference_update(due)
    yield from due


@pytest.mark.parametrize("seed", SEEDS)
def test_two_keyed_inputs_share_state_and_timers(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    subtasks = Subtasks(specs.KEYED_CO_PROCESS, Shared, tmp_path)
    totals: dict[Any, int] = {}
    timers: set[tuple[int, Any]] = set()
    watermark = -1
    subtasks.watermark(watermark)
    for _ in range(100):
        key, number = rng.choice([1, "a", ("t", 2), b"b", 2.5]), rng.randrange(100)
        step = rng.random()
        if step < 0.5:
            time = watermark + rng.randrange(-3, 10)
            totals[key] = totals.get(key, 0) + number
            expected = Counter([repr((key, totals[key]))])
            if time <= watermark:
                expected[repr(("late", ((key, number), time)))] += 1
            assert subtasks.send(0, (key, number), time) == expected, seed
        elif step < 0.75:
            timers.add((watermark + number, key))
            assert not subtasks.send(1, (key, watermark + number), 0), seed
        elif step < 0.9:
            watermark += rng.randrange(30)
            found = Counter(
                repr((("timer", key, time, totals.get(key)), time))
                for time, key in fired(timers, watermark)
            )
            assert subtasks.watermark(watermark) == found, seed
        else:
            subtasks.restart(rng.choice([1, 2, 3]))
            assert subtasks.watermark(watermark) == Counter(
                repr((("timer", key, time, totals.get(key)), time))
                for time, key in fired(timers, watermark)
            ), seed


@pytest.mark.parametrize("seed", SEEDS)
def test_broadcast_state_and_the_keyed_state_of_all_keys(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    subtasks = Subtasks(specs.KEYED_BROADCAST_PROCESS, Factors, tmp_path)
    totals: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    factors: dict[int, int] = {}
    timers: set[tuple[int, Any]] = set()
    watermark = -1
    subtasks.watermark(watermark)
    for _ in range(100):
        key, number = rng.randrange(6), rng.randrange(200)
        step = rng.random()
        if step < 0.5:
            totals[key] = totals.get(key, 0) + number * factors.get(number % 3, 1)
            seen.setdefault(key, []).append(number)
            timers.add((number, key))
            expected = Counter([repr((key, totals[key], sorted(factors.items())))])
            assert subtasks.send(0, (key, number), 0) == expected, seed
        elif step < 0.65:
            factors[number % 3] = number + 1
            assert not subtasks.broadcast((number % 3, number + 1)), seed
        elif step < 0.75:
            factors.pop(number % 3, None)
            totals = {key: total + number % 3 for key, total in totals.items()}
            found = subtasks.broadcast((number % 3, 0))
            assert found == Counter(repr(("seen", k, values)) for k, values in seen.items()), seed
        else:
            if step < 0.85:
                watermark += rng.randrange(40)
            else:
                subtasks.restart(rng.choice([1, 2, 3]))
            at = sorted(factors.items())
            assert subtasks.watermark(watermark) == Counter(
                repr((("timer", key, time, totals[key], at), time))
                for time, key in fired(timers, watermark)
            ), seed


@pytest.mark.parametrize("in_order", [False, True])
def test_keys_have_an_order_of_their_own_if_steps_are_repeated(
    tmp_path: Path, in_order: bool
) -> None:
    found = []
    for keys in ("cab", "bca"):
        backend = Maker(tmp_path / keys)(codec=CODEC, in_order=in_order)
        states = OperatorStateBackend("op", CODEC)
        context = OperatorContext("op", "uid", 0, 1, GROUPS, 0, CODEC, backend, (), states)
        operator = Operator(0, specs.KEYED_BROADCAST_PROCESS, "op", Factors())
        operator.key_selector, operator.broadcast_states = lambda value: value[0], (FACTORS,)
        task = build_operator(OperatorPlace(operator, context))
        task.initialize_state()
        task.open()
        task.process(RecordBatch([(key, 1) for key in keys], None, [0, 0, 0]))
        task.select_input(1)
        seen = task.process(RecordBatch([(1, 0)], None, [0])).rows()
        found.append([key for _, key, _ in seen])
    assert found == [[*"abc"]] * 2 if in_order else found[0] != found[1]
