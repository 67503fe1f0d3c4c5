"""Synchronous snapshots: each row of the table, then whole jobs in every order.

The model is `simulation/mode_model.py`. A snapshot must end, hold each record that came into being
before it in one state or one log, and the job must go on afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig, RestartStrategy
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.functions import KeyedProcessFunction, RuntimeContext
from penstock.dataflow.state import ValueStateDescriptor
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BarrierSent,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    Halt,
    Resume,
    StartLog,
    UnblockChannels,
)
from penstock.snapshot.protocols.synchronous import SynchronousProtocol
from penstock.testing.simulation.machine import Machine
from tests.simulation.execution import Violation
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.mode_jobs import abandoned, jobs
from tests.simulation.mode_model import Mode, ModeModel
from tests.simulation.run_program import Events, program, run_program
from tests.snapshot.protocols.driven import DrivenProtocol


class Driven(DrivenProtocol[SynchronousProtocol]):
    """Regular inputs a and b and back-edges x and y."""

    def __init__(self, inputs: str = "abxy", back_edges: str = "xy") -> None:
        super().__init__(SynchronousProtocol(inputs, back_edges))


def cut(number: int, logged: tuple[str, ...] = ()) -> list[Command]:
    return [CopyState(number), StartLog(number, logged), Broadcast(number)]


HELD: list[Command] = [BlockChannel("x"), BlockChannel("y"), Halt()]


def test_a_source_halts_behind_its_barrier_until_the_snapshot_is_complete() -> None:
    source = Driven("", "")
    assert source.barrier(None) == [*cut(1), Halt(), EndLog(1)]
    assert source.complete() == [Resume()]
    assert source.complete() == []


def test_a_task_makes_its_cut_at_the_last_barrier_and_blocks_nothing_before() -> None:
    task = Driven("ab", "")
    assert task.barrier("a") == []
    assert task.barrier("b") == [*cut(1), Halt(), EndLog(1)]
    assert task.complete() == [Resume()]


def test_back_edges_are_held_and_logged_at_the_cut() -> None:
    task = Driven()
    task.barrier("a")
    assert task.barrier("b") == [*cut(1, ("x", "y")), *HELD]
    assert task.announced("x") == []
    assert task.announced("y") == [EndLog(1)]
    assert task.complete() == [Resume(), UnblockChannels(("x", "y"))]
    # Only now are their barriers taken.
    assert task.barrier("x") == task.barrier("y") == []


def test_a_back_edge_whose_barrier_came_before_the_cut_is_held_and_not_logged() -> None:
    task = Driven()
    assert task.barrier("x") == task.barrier("a") == []
    assert task.barrier("b") == [*cut(1, ("y",)), *HELD]


def test_a_snapshot_that_is_given_up_is_undone() -> None:
    source, task = Driven("", ""), Driven()
    source.barrier(None)
    assert source.abort(0) == []
    assert source.abort(1) == [Resume()]
    task.barrier("a")
    task.barrier("b")
    assert task.abort(1) == [DropLog(1), Resume(), UnblockChannels(("x", "y"))]
    assert task.announced("x") == task.barrier("x") == []
    task.barrier("a", 2)
    assert task.abort(2) == []
    assert task.barrier("b", 2) == []


def test_a_higher_barrier_says_that_the_lower_snapshot_is_over() -> None:
    task = Driven("ax", "x")
    task.barrier("a")
    assert task.barrier("a", 2) == [
        DropLog(1),
        Resume(),
        UnblockChannels(("x",)),
        *cut(2, ("x",)),
        BlockChannel("x"),
        Halt(),
    ]
    assert task.barrier("a", 1) == []
    task.announced("x", 2)
    # It was complete, and this task is told after its sources have begun the next.
    assert task.barrier("a", 3)[:2] == [Resume(), UnblockChannels(("x",))]
    assert task.complete(2) == []
    assert task.announced("x", 4) == [DropLog(3), Resume(), UnblockChannels(("x",))]


def test_impossible_events_are_refused() -> None:
    task = Driven("a", "")
    for event in (BarrierArrived(None, 1), BarrierArrived("z", 1), BarrierSent(1)):
        with pytest.raises(ProtocolError, match="halted False"):
            task.handle(event)


def test_validate_finds_what_cannot_be() -> None:
    protocol = SynchronousProtocol("ab")
    protocol.halted = True
    with pytest.raises(ProtocolError, match="inconsistent"):
        protocol.validate()
    protocol.number, protocol.halted, protocol.logging = 1, False, True
    with pytest.raises(ProtocolError, match="before the snapshot"):
        protocol.validate()


# ---- whole jobs


@pytest.mark.parametrize("name", jobs())
def test_a_snapshot_holds_each_record_once_in_every_order_and_the_job_goes_on(name: str) -> None:
    found = ModeModel(jobs()[name], Mode(SynchronousProtocol)).search()
    assert found.cuts > 3, found
    assert (found.logged > 0) == ("loop" in name or name == "nested"), found


@pytest.mark.parametrize("name", abandoned())
def test_so_does_the_one_after_a_snapshot_that_was_given_up(name: str) -> None:
    assert ModeModel(abandoned()[name], Mode(SynchronousProtocol)).search().cuts > 2


class Without(SynchronousProtocol):
    """Leaves some commands out."""

    left_out: tuple[type[Command], ...] = ()

    def handle(self, event: Event) -> list[Command]:
        return [c for c in super().handle(event) if not isinstance(c, self.left_out)]


class NeverHalts(Without):
    """Sources go on before the snapshot is complete."""

    left_out = (Halt, Resume)


class NeverResumes(Without):
    """Sources stay halted."""

    left_out = (Resume,)


class HoldsNothing(Without):
    """Back-edges go on."""

    left_out = (BlockChannel, UnblockChannels)


class NeverLetsGo(Without):
    """Back-edges are held for ever."""

    left_out = (UnblockChannels,)


@pytest.mark.parametrize(
    ("rule", "name", "how"),
    [
        (NeverHalts, "join", "doubled"),
        (NeverHalts, "diamond", "doubled"),
        (NeverHalts, "self-loop", "doubled"),
        (NeverResumes, "join", "waits for ever"),
        (HoldsNothing, "self-loop", "doubled"),
        (NeverLetsGo, "nested", "waits for ever"),
    ],
)
def test_a_wrong_rule_is_found_out(rule: type[SynchronousProtocol], name: str, how: str) -> None:
    with pytest.raises(Violation, match=f"^{how}"):
        ModeModel(jobs()[name], Mode(rule)).search()


# ---- on the simulated cluster


class Spread(KeyedProcessFunction):
    """Sends each record round a loop, and emits the result of each key at the end of input."""

    def open(self, context: RuntimeContext) -> None:
        self.best = context.get_state(ValueStateDescriptor("best"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, hops = value
        if self.best.value() is None or hops > self.best.value():
            self.best.update(hops)
            if hops < 4:
                yield ("on", key, hops + 1)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("result", ctx.get_current_key(), self.best.value())


LEDGER, KEYS = -31, 12


def loop_beside_a_stream(env: StreamExecutionEnvironment) -> None:
    """A loop that is soon quiet, and a source that goes on; both lead to one task."""
    back = env.create_feedback("again")
    seeds = env.from_collection([(key, 0) for key in range(KEYS)])
    spread = seeds.union(back).key_by(lambda v: v[0]).process(Spread()).uid("spread")
    back.close_with(spread.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])))
    numbers = GeneratorSource(lambda i: ("other", i), None, 300.0, clock=trio.current_time)
    other = env.from_source(numbers, None, "numbers").rebalance().map(lambda r: r)
    other = other.rebalance().map(lambda r: r).rebalance()
    results = spread.filter(lambda r: r[0] == "result").union(other).global_().map(lambda r: r)
    results.set_parallelism(1).sink_to(LedgerSink(LEDGER)).set_parallelism(1)


async def kill_after_snapshots(job: JobManager, machine: Machine, events: Events) -> None:
    seen = kills = 0
    while kills < 12 or len(results()) < KEYS:
        await trio.sleep(0.002)
        snapshots = [event for event in events[seen:] if event["event"] == "snapshot"]
        seen = len(events)
        living = [p for p in machine.processes if p.name.startswith("worker") and not p.dead]
        if snapshots and living and kills < 12:
            kills += 1
            living[0].kill()
    job.stop()


def results() -> dict[Any, int]:
    return {r: n for r, n in LEDGERS[LEDGER].output().items() if r[0] == "result"}


@pytest.mark.parametrize("seed", [1, 3])
def test_hooks_of_a_quiet_loop_do_not_run_between_the_cuts_of_a_snapshot(
    seed: int, tmp_path: Path
) -> None:
    LEDGERS[LEDGER] = Ledger()
    config = JobConfig(
        name="hooks",
        parallelism=2,
        max_parallelism=16,
        checkpoint_dir=str(tmp_path),
        checkpoint_interval_seconds=0.05,
        checkpointing_mode=CheckpointingMode.SYNCHRONOUS,
        restart=RestartStrategy("fixed_delay", None, 0.0),
        buffer_timeout_seconds=0.0,
    )
    try:
        blob = program(loop_beside_a_stream, config)
        ran = run_program(blob, seed=seed, script=kill_after_snapshots, delay=0.004)
        found = results()
    finally:
        del LEDGERS[LEDGER]
    assert not ran.hung and not ran.crashes and ran.outcome.stopped
    assert found == {("result", key, 4): 1 for key in range(KEYS)}
