"""What a snapshot holds is restored at another parallelism: with fewer slots, and with more again.

Goal: whatever kind of state or of records in flight a snapshot holds, a job that loses slots goes
on with the others and grows again, and its output is that of an undisturbed run.

Method: the simulated cluster takes slots away after a snapshot, and kills a worker, and gives them
back after some time. Each kind is in programs of its own. All modes have it, so that logs are
restored, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    DataStream,
    FileSink,
    GeneratorSource,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.dataflow.config import CheckpointingMode
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.testing.simulation import Fault, Schedule, Simulation
from tests.simulation.paced import paced_simulation
from tests.simulation.random_jobs.shapes import SHAPES, Choices
from tests.sizes import sized

RECORDS, KEYS = 240, 7
SEEDS, MOST_SEEDS = sized(2, 20), 20
SEEN = MapStateDescriptor("seen")
Build = Callable[[StreamExecutionEnvironment, DataStream], DataStream]


class SeenByAll(BroadcastProcessFunction):
    """Counts broadcast records in broadcast state. The first subtask says how many there were."""

    def open(self, context: RuntimeContext) -> None:
        self.speaks = context.get_index_of_this_subtask() == 0

    def process_element(self, value: int, ctx: Any) -> Any:
        yield ("passed", value)

    def process_broadcast_element(self, value: int, ctx: Any) -> Any:
        state, key = ctx.get_broadcast_state(SEEN), value % KEYS
        state.put(key, (state.get(key) or 0) + 1)
        if self.speaks:
            yield ("seen", key, state.get(key))


class KeyedSeenByAll(KeyedBroadcastProcessFunction):
    """Does the same, and counts the records of each key in keyed state."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = SeenByAll()
        self.seen.open(context)
        self.number = context.get_state(ValueStateDescriptor("number"))

    def process_element(self, value: int, ctx: Any) -> Any:
        self.number.update((self.number.value() or 0) + 1)
        yield ("own", ctx.get_current_key(), self.number.value())

    def process_broadcast_element(self, value: int, ctx: Any) -> Any:
        return self.seen.process_broadcast_element(value, ctx)


def _broadcast_state(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    seen = stream.map(lambda i: i).broadcast(SEEN)
    return stream.rebalance().connect(seen).process(SeenByAll())


def keyed_broadcast_state(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    seen = stream.map(lambda i: i).broadcast(SEEN)
    return stream.key_by(lambda i: i % KEYS).connect(seen).process(KeyedSeenByAll())


def _shape(name: str) -> Build:
    choices = Choices(keys=KEYS, hook=False, mutable=True, source_times=False)
    return lambda env, stream: SHAPES[name].build(env, stream, choices)


KINDS: dict[str, Build] = {
    "keyed state of all kinds": _shape("states"),
    "timers": _shape("timers"),
    "event timers": _shape("event timers"),
    "lists": _shape("operator list"),
    "requests in flight": _shape("requests"),
    "logs of a loop": _shape("loop"),
    "logs of a wide loop": _shape("wide loop"),
    "two inputs": _shape("two inputs"),
    "broadcast state": _broadcast_state,
    "keyed broadcast state": keyed_broadcast_state,
}
#: The kinds of which the few seeds restore logs, too.
WITH_LOGS = {
    CheckpointingMode.EXACTLY_ONCE: ["logs of a loop", "logs of a wide loop"],
    CheckpointingMode.UNALIGNED: ["keyed state of all kinds", "logs of a loop", "two inputs"],
}
MODES = [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED]


def _simulation(build: Build, mode: CheckpointingMode, apart: bool = False) -> Simulation:
    def main() -> None:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
        env.config.checkpointing_mode = mode
        env.config.inline_threshold = 0
        env.config.batch_records, env.config.channel_batches = 2, 1
        for part in range(1 + apart):
            source = GeneratorSource(lambda i: i, RECORDS)
            stream = env.from_source(source, None, f"numbers {part}")
            build(env, stream).sink_to(FileSink(f"out{part}"))
        if apart:
            env.config.restart_scope = RestartScope.REGION
        env.execute()

    return paced_simulation(main)


def _lose_slots(
    simulation: Simulation, wanted: Iterable[str], how: str = "lose slots"
) -> Counter[str]:
    """Return what has happened under some seeds. The output must be right.

    Under a seed, the slots may return before the job has begun with fewer. So more seeds follow
    until everything that is wanted has happened.
    """
    happened = Counter[str]()
    for seed in range(MOST_SEEDS):
        if seed >= SEEDS and all(happened[one] for one in wanted):
            break
        faults = (Fault(how, "snapshot", 2, 0.0), Fault(how, "snapshot", 4, 0.003))
        result = simulation.run_schedule(
            seed, Schedule(faults, (3,), interval_seconds=0.03, delay_seconds=0.004)
        )
        assert simulation.failure(result) is None, f"seed {seed}: {simulation.failure(result)}"
        happened += result.happened
    return happened


@pytest.mark.parametrize("mode", MODES, ids=["aligned", "unaligned"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_is_restored_with_fewer_slots_and_with_more(
    kind: str, mode: CheckpointingMode
) -> None:
    wanted = ["fewer slots", "more slots"]
    if kind in WITH_LOGS[mode]:
        wanted.append("logs restored")
    happened = _lose_slots(_simulation(KINDS[kind], mode), wanted)
    assert all(happened[one] for one in wanted), happened


@pytest.mark.parametrize("how", ["lose slot", "lose slots"])
def test_so_is_a_snapshot_of_two_regions(how: str) -> None:
    simulation = _simulation(keyed_broadcast_state, MODES[0], apart=True)
    wanted = ["fewer slots", "more slots"]
    happened = _lose_slots(simulation, wanted, how)
    assert all(happened[one] for one in wanted), happened
