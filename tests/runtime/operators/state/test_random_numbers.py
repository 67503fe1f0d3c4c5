"""The random numbers of operators continue after a restore as without it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    BatchFunction,
    CheckpointedFunction,
    DataStream,
    GraphError,
    JobError,
    KeySelector,
    ListStateDescriptor,
    MapFunction,
    ProcessFunction,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from penstock.runtime.operators.context import OperatorContext
from penstock.snapshot.state.operator_state import OperatorStateBackend, StateMode
from penstock.testing import OperatorHarness
from tests.runtime.operators.state.states import CODEC


class Draw(MapFunction):
    """Replaces each record by a pair of it and a random number."""

    def open(self, runtime_context: Any) -> None:
        self.random = runtime_context.get_random()
        assert runtime_context.get_random() is self.random

    def map(self, value: Any) -> tuple[Any, float]:
        return value, self.random.random()


class DrawNormal(Draw):
    """Draws by a method that keeps the second one of two numbers for the next call."""

    def map(self, value: Any) -> tuple[Any, float]:
        return value, self.random.gauss(0.0, 1.0)


class DrawNothing(MapFunction):
    def map(self, value: Any) -> tuple[Any, float]:
        return value, 0.0


def drawn(harness: OperatorHarness, count: int = 100, subtask: int = 0) -> list[Any]:
    harness.process_elements([(i, None) for i in range(count)], subtask=subtask)
    return harness.extract_output_values()


def numbers(pairs: list[Any]) -> list[float]:
    return [number for _, number in pairs]


@pytest.mark.parametrize("function", [Draw, DrawNormal])
@pytest.mark.parametrize("before", [0, 1, 7, 700])
def test_a_restored_generator_goes_on_where_the_snapshot_was_taken(
    function: type[MapFunction], before: int
) -> None:
    harness = OperatorHarness(function())
    drawn(harness, before)
    snapshot = harness.snapshot()
    after = drawn(harness)
    assert len({*numbers(after)}) == 100
    restored = OperatorHarness.restore(snapshot)
    assert drawn(restored) == after
    later = restored.snapshot()
    assert drawn(OperatorHarness.restore(later)) == drawn(harness)


def test_each_operator_and_each_subtask_has_numbers_of_its_own() -> None:
    def twice(stream: DataStream) -> DataStream:
        return stream.map(Draw()).uid("one").map(Draw()).uid("two")

    harness = OperatorHarness(twice, parallelism=3)
    found = [n for subtask in range(3) for (_, a), b in drawn(harness, 50, subtask) for n in (a, b)]
    assert len({*found}) == len(found) == 300
    snapshot = harness.snapshot()
    after = [drawn(harness, 50, subtask) for subtask in range(3)]
    restored = OperatorHarness.restore(snapshot)
    assert [drawn(restored, 50, subtask) for subtask in range(3)] == after


def test_new_subtasks_begin_with_new_numbers_that_come_again() -> None:
    harness = OperatorHarness(Draw(), parallelism=2)
    seen = {n for subtask in range(2) for n in numbers(drawn(harness, 50, subtask))}
    snapshot = harness.snapshot()
    for parallelism in (1, 3):
        wider = OperatorHarness.restore(snapshot, parallelism)
        found = [numbers(drawn(wider, 50, subtask)) for subtask in range(parallelism)]
        flat = {n for some in found for n in some}
        assert len(flat) == 50 * parallelism and not flat & seen
        again = OperatorHarness.restore(snapshot, parallelism)
        assert [numbers(drawn(again, 50, subtask)) for subtask in range(parallelism)] == found
        # From now on they continue, as at the former parallelism.
        next_one = again.snapshot()
        after = drawn(again)
        assert drawn(OperatorHarness.restore(next_one)) == after
        # Back at the first parallelism, the first numbers do not come again.
        back = OperatorHarness.restore(next_one, 2)
        assert not {n for subtask in range(2) for n in numbers(drawn(back, 50, subtask))} & seen


def test_only_an_operator_that_draws_has_its_state() -> None:
    def both(stream: DataStream) -> DataStream:
        return stream.map(DrawNothing()).uid("plain").map(Draw()).uid("draw")

    handles = OperatorHarness(both).snapshot().manifest.handles
    assert [one.uid for one in handles if one.operator_state is not None] == ["draw"]


def test_an_operator_may_cease_to_draw_and_draw_again() -> None:
    def built(function: MapFunction) -> Callable[[DataStream], DataStream]:
        return lambda stream: stream.map(function).uid("draw")

    harness = OperatorHarness(built(Draw()))
    first = drawn(harness)
    plain = OperatorHarness(built(DrawNothing()), snapshot=harness.snapshot())
    assert numbers(drawn(plain)) == [0.0] * 100
    snapshot = plain.snapshot()
    assert not [one for one in snapshot.manifest.handles if one.operator_state is not None]
    again = drawn(OperatorHarness(built(Draw()), snapshot=snapshot))
    assert not {*numbers(again)} & {*numbers(first)}
    # The whole operator may go, too.
    without = OperatorHarness(lambda stream: stream.map(str).uid("other"), snapshot=snapshot)
    assert drawn(without, 1) == ["0"]
    without = OperatorHarness(
        lambda stream: stream.map(str).uid("other"), snapshot=harness.snapshot()
    )
    assert drawn(without, 1) == ["0"]


class Listed(ProcessFunction, CheckpointedFunction):
    """Has operator state of its own, besides random numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor(self.name))
        self.seen = list(self.saved.get())

    def open(self, runtime_context: Any) -> None:
        self.random = runtime_context.get_random()

    def snapshot_state(self, context: Any) -> None:
        self.saved.update(self.seen)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.append(value)
        yield len(self.seen), self.random.random()


def test_other_operator_state_stays_beside_the_numbers() -> None:
    harness = OperatorHarness(Listed("seen"))
    drawn(harness)
    snapshot = harness.snapshot()
    after = drawn(harness)
    assert after[0][0] == 101
    assert drawn(OperatorHarness.restore(snapshot)) == after
    with pytest.raises(GraphError, match="'seen' is gone") as error:
        OperatorHarness(Listed("others"), snapshot=snapshot)
    assert "random" not in str(error.value)


class DrawBatch(BatchFunction):
    def open(self, runtime_context: Any) -> None:
        self.random = runtime_context.get_random()

    def map_batch(self, batch: Any) -> Any:
        return [{**row, "drawn": self.random.random()} for row in batch]


def test_a_function_of_batches_draws() -> None:
    def build(stream: DataStream) -> DataStream:
        rows = stream.map(lambda i: {"i": i})
        return rows.map_batches(DrawBatch(), format="rows").map(
            lambda row: (row["i"], row["drawn"])
        )

    harness = OperatorHarness(build)
    drawn(harness)
    snapshot = harness.snapshot()
    assert drawn(OperatorHarness.restore(snapshot)) == drawn(harness)


class Late(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context

    def map(self, value: Any) -> float:
        return self.context.get_random().random()


def test_a_function_that_asks_too_late_is_told_so() -> None:
    harness = OperatorHarness(Late())
    with pytest.raises(JobError, match=r"called get_random while it ran: call it in open"):
        harness.process_element(1)


class Sends(AsyncFunction):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_random()

    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


class Chooses(KeySelector):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_random()

    def get_key(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda s: AsyncDataStream.unordered_wait(s, Sends(), 60_000, 9), "requests overlap"),
        (lambda s: s.key_by(Chooses()).count(), "must always return the same"),
    ],
    ids=["requests", "a key selector"],
)
def test_functions_whose_numbers_would_not_come_again_are_refused(
    build: Callable[[DataStream], DataStream], why: str
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    with pytest.raises((GraphError, JobError), match=f"no random numbers here: .*{why}"):
        list(build(env.from_sequence(1, 3)).execute_and_collect())


def test_the_numbers_of_a_context_follow_from_the_run_and_the_place() -> None:
    def first(run: str, uid: str, subtask: int, parallelism: int, restored: int | None) -> float:
        state = OperatorStateBackend("draw", CODEC, restored)
        context = OperatorContext(
            "draw", uid, subtask, parallelism, 8, 0, CODEC, operator_state=state, run=run
        )
        return context.get_random().random()

    places = [
        ("run", "draw", 0, 1, None),
        ("other", "draw", 0, 1, None),
        ("run", "other", 0, 1, None),
        ("run", "draw", 0, 2, None),
        ("run", "draw", 1, 2, None),
        ("run", "draw", 0, 1, 3),
    ]
    assert len({first(*place) for place in places}) == len(places)
    assert first(*places[0]) == first(*places[0])


# ---- whole jobs

#: What each record has drawn, over all attempts. The jobs run in this process.
DRAWN: dict[int, set[float]] = defaultdict(set)


class DrawAndFail(MapFunction):
    """Draws, and fails once."""

    def open(self, runtime_context: Any) -> None:
        self.random = runtime_context.get_random()
        self.fails = runtime_context.get_attempt_number() == 0

    def map(self, value: int) -> float:
        number = self.random.random()
        DRAWN[value].add(number)
        if value == 900 and self.fails:
            raise ValueError("once")
        return number


@pytest.mark.parametrize("interval", [None, 5], ids=["no snapshot", "snapshots"])
def test_a_restarted_job_draws_the_same_numbers(interval: int | None, tmp_path: Path) -> None:
    """Without snapshots, it begins again, with the same numbers."""
    DRAWN.clear()
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 0))
    if interval is not None:
        env.enable_checkpointing(interval)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    found = list(env.from_sequence(1, 1_000).map(DrawAndFail()).execute_and_collect())
    assert len(found) == len({*found}) == 1_000 == len(DRAWN)
    assert all(len(numbers) == 1 for numbers in DRAWN.values())


@pytest.mark.parametrize("mode", RuntimeExecutionMode)
def test_each_run_has_other_numbers(mode: RuntimeExecutionMode) -> None:
    def run() -> set[float]:
        env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
        env.set_runtime_mode(mode)
        return {*numbers(list(env.from_sequence(1, 50).map(Draw()).execute_and_collect()))}

    first, second = run(), run()
    assert len(first) == len(second) == 50 and not first & second


def test_a_sample_without_a_seed_continues_after_a_restore() -> None:
    harness = OperatorHarness(lambda stream: stream.sample(0.5))
    assert 0 < len(drawn(harness, 1_000)) < 1_000
    snapshot = harness.snapshot()
    assert drawn(OperatorHarness.restore(snapshot), 1_000) == drawn(harness, 1_000)


def test_the_generator_is_that_of_python() -> None:
    """So all of its methods may be used, and it is as fast."""
    state = OperatorStateBackend("draw", CODEC)
    generator = OperatorContext("draw", "u", 0, 1, 8, 0, CODEC, operator_state=state).get_random()
    plain = random.Random()
    plain.setstate(generator.getstate())
    assert generator.sample(range(99), 9) == plain.sample(range(99), 9)
    assert type(generator).random is random.Random.random
    assert state.modes == {"penstock.random_numbers": StateMode.SPLIT}
