"""At least once: each row of the table, then whole jobs in every order.

The model is `simulation/mode_model.py`. A snapshot must end, and hold at least once whatever came
into being before it; that records are held twice must happen as well, or the mode would be
exactly-once and the others not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import ProtocolError
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.base import Phase
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
    StartLog,
    UnblockChannels,
)
from tests.simulation.execution import Violation
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.mode_jobs import abandoned, jobs
from tests.simulation.mode_model import Mode, ModeModel
from tests.simulation.run_program import program, run_program
from tests.snapshot.protocols.driven import DrivenProtocol


class Driven(DrivenProtocol[AtLeastOnceProtocol]):
    """Regular inputs a and b and back-edges x and y."""

    def __init__(self, inputs: str = "abxy", back_edges: str = "xy") -> None:
        super().__init__(AtLeastOnceProtocol(inputs, back_edges))


def cut(number: int, logged: tuple[str, ...] = ()) -> list[Command]:
    return [CopyState(number), StartLog(number, logged), Broadcast(number)]


def test_a_source_makes_its_cut_at_once_and_has_nothing_to_log() -> None:
    assert Driven("", "").barrier(None) == [*cut(1), EndLog(1)]


def test_a_task_makes_its_cut_at_the_last_regular_barrier_and_blocks_nothing() -> None:
    task = Driven("ab", "")
    assert task.barrier("a") == []
    assert task.protocol.phase is Phase.ALIGNING
    assert task.barrier("b") == [*cut(1), EndLog(1)]
    assert task.barrier("a", 2) == []


def test_back_edges_are_logged_until_their_barriers_arrive() -> None:
    task = Driven()
    task.barrier("a")
    assert task.barrier("b") == cut(1, ("x", "y"))
    assert task.announced("y") == []
    assert task.barrier("y") == []
    assert task.announced("x") == [EndLog(1)]
    assert task.protocol.phase is Phase.IDLE


def test_a_back_edge_whose_barrier_came_before_the_cut_is_not_logged() -> None:
    task = Driven()
    assert task.barrier("x") == task.barrier("a") == task.announced("y") == []
    assert task.barrier("b") == cut(1, ("y",))


def test_a_higher_barrier_gives_up_what_is_counted() -> None:
    task = Driven("ab", "")
    task.barrier("a")
    assert task.barrier("b", 2) == task.barrier("b", 1) == []
    assert task.barrier("a", 2) == [*cut(2), EndLog(2)]


def test_a_snapshot_that_must_be_exact_blocks_until_the_cut() -> None:
    task = Driven("abxy", "xy")
    assert task.handle(BarrierArrived("x", 1, align=True)) == [BlockChannel("x")]
    assert task.handle(BarrierArrived("a", 1, align=True)) == [BlockChannel("a")]
    assert task.handle(BarrierArrived("b", 1, align=True)) == [
        *cut(1, ("y",)),
        UnblockChannels(("x", "a")),
    ]
    assert task.announced("y") == [EndLog(1)]


def test_a_snapshot_that_must_be_exact_is_given_up_like_any_other() -> None:
    task = Driven("abc", "")
    assert task.handle(BarrierArrived("a", 1, align=True)) == [BlockChannel("a")]
    assert task.abort(1) == [UnblockChannels(("a",))]
    assert task.handle(BarrierArrived("a", 2, align=True)) == [BlockChannel("a")]
    assert task.barrier("b", 3) == [UnblockChannels(("a",))]
    assert task.barrier("a", 3) == []
    assert task.barrier("c", 3) == [*cut(3), EndLog(3)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_higher_barrier_drops_the_log(taken: bool) -> None:
    task = Driven("ax", "x")
    task.barrier("a")
    if taken:
        assert task.barrier("a", 2) == [DropLog(1), *cut(2, ("x",))]
        assert task.announced("x", 1) == []
        assert task.announced("x", 2) == [EndLog(2)]
    else:
        assert task.announced("x", 2) == [DropLog(1)]
        assert task.barrier("x", 2) == []
        assert task.barrier("a", 2) == [*cut(2), EndLog(2)]


def test_what_is_given_up_is_forgotten_and_its_barriers_are_stale() -> None:
    task = Driven("ax", "x")
    task.barrier("a")
    assert task.abort(0) == []
    assert task.abort(1) == [DropLog(1)]
    assert task.announced("x") == task.barrier("x") == []
    assert task.abort(3) == []
    assert task.barrier("a", 3) == []
    assert task.complete(3) == []
    assert task.protocol.phase is Phase.IDLE


def test_impossible_events_are_refused_and_change_nothing() -> None:
    task = Driven("a", "")
    for event in (BarrierArrived(None, 1), BarrierArrived("z", 1), BarrierSent(1)):
        with pytest.raises(ProtocolError, match="phase idle"):
            task.handle(event)
    with pytest.raises(ProtocolError, match="no input"):
        Driven("", "").barrier("a")


def test_validate_finds_what_cannot_be() -> None:
    def broken(match: str, **changes: object) -> None:
        protocol = AtLeastOnceProtocol("ab")
        for name, value in changes.items():
            setattr(protocol, name, value)
        with pytest.raises(ProtocolError, match=match):
            protocol.validate()

    broken("inconsistent", number=1)
    broken("inconsistent", marked={"a"})
    broken("wrong channels", blocked={"a": None})
    broken("overdue", phase=Phase.ALIGNING, number=1, marked={"a", "b"})
    broken("nothing to log", phase=Phase.LOGGING, number=1, marked={"a", "b"})


# ---- whole jobs

MODE = Mode(AtLeastOnceProtocol, doubles=True)
#: In these a record can overtake a barrier: there are two ways to a task.
TWO_WAYS = ("join", "diamond", "shuffle", "self-loop")


@pytest.mark.parametrize("name", jobs())
def test_a_snapshot_loses_nothing_in_any_order(name: str) -> None:
    found = ModeModel(jobs()[name], MODE).search()
    assert found.cuts > 3, found
    assert (found.doubled > 0) == (name in TWO_WAYS), found
    assert (found.logged > 0) == ("loop" in name or name == "nested"), found


@pytest.mark.parametrize("name", abandoned())
def test_nor_does_the_one_after_a_snapshot_that_was_given_up(name: str) -> None:
    assert ModeModel(abandoned()[name], MODE).search().cuts > 2


class Aligned(AtLeastOnceProtocol):
    """Hears of each barrier as of that of a job's last snapshot."""

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, BarrierArrived):
            event = replace(event, align=True)
        return super().handle(event)


@pytest.mark.parametrize("name", jobs())
def test_a_snapshot_that_must_be_exact_is_exact_in_any_order(name: str) -> None:
    assert ModeModel(jobs()[name], Mode(Aligned)).search().cuts > 3


@pytest.mark.parametrize("name", abandoned())
def test_so_is_the_one_after_a_snapshot_that_was_given_up(name: str) -> None:
    assert ModeModel(abandoned()[name], Mode(Aligned)).search().cuts > 2


class Overlooks(AtLeastOnceProtocol):
    """Takes no notice of some channels."""

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, BarrierArrived) and event.channel not in (None, *self.inputs):
            return []
        return super().handle(event)


class CutsAtTheFirstBarrier(Overlooks):
    """Does not wait for the other inputs."""

    def __init__(self, inputs: Sequence[int], back_edges: Sequence[int]) -> None:
        regular = [channel for channel in inputs if channel not in back_edges]
        super().__init__([*regular[:1], *back_edges], back_edges)


class LogsNoBackEdge(Overlooks):
    """Leaves out what is in flight in loops."""

    def __init__(self, inputs: Sequence[int], back_edges: Sequence[int]) -> None:
        super().__init__([channel for channel in inputs if channel not in back_edges])


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (CutsAtTheFirstBarrier, "join"),
        (CutsAtTheFirstBarrier, "shuffle"),
        (LogsNoBackEdge, "self-loop"),
        (LogsNoBackEdge, "two-task loop"),
        (LogsNoBackEdge, "nested"),
    ],
)
def test_a_rule_that_loses_records_is_found_out(rule: type[AtLeastOnceProtocol], name: str) -> None:
    with pytest.raises(Violation, match=r"^lost"):
        ModeModel(jobs()[name], Mode(rule, doubles=True)).search()


def test_it_is_not_exactly_once() -> None:
    with pytest.raises(Violation, match=r"^doubled"):
        ModeModel(jobs()["join"], Mode(AtLeastOnceProtocol)).search()


# ---- on the simulated cluster

LEDGER, RECORDS = -41, 400


def hops(env: StreamExecutionEnvironment) -> None:
    """Each record goes four times round a loop of two tasks."""
    numbers = GeneratorSource(lambda i: (i, 4), RECORDS, 400.0, clock=trio.current_time)
    back = env.create_feedback("again")
    first = env.from_source(numbers, None, "numbers").uid("numbers").rebalance()
    went = first.union(back).key_by(lambda r: r[0] % 7).map(lambda r: (r[0], r[1] - 1)).uid("hop")
    again = went.filter(lambda r: r[1] > 0).uid("again").rebalance().map(lambda r: r).uid("on")
    back.close_with(again)
    out = went.rebalance().map(lambda r: r).uid("out").union(again.rebalance().map(lambda r: r))
    out.sink_to(LedgerSink(LEDGER)).uid("sink")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_with_a_loop_that_is_stopped_in_order_doubles_nothing(
    seed: int, tmp_path: Path
) -> None:
    async def stop(job: JobManager, *_: Any) -> None:
        await trio.sleep(0.25)
        job.stop()

    LEDGERS[LEDGER] = Ledger()
    config = JobConfig(
        name="hops",
        parallelism=2,
        max_parallelism=16,
        checkpoint_dir=str(tmp_path),
        checkpoint_interval_seconds=0.05,
        checkpointing_mode=CheckpointingMode.AT_LEAST_ONCE,
        batch_records=4,
        buffer_timeout_seconds=0.0,
    )
    stops, stopped = 0, True
    try:
        while stopped:
            options = JobSettings(resume="newest" if stops else None)
            blob = program(hops, config)
            ran = run_program(blob, seed=seed + stops, options=options, script=stop, delay=0.004)
            assert not ran.hung and not ran.crashes
            stopped = ran.outcome.stopped
            stops += stopped
        output = LEDGERS[LEDGER].output()
    finally:
        del LEDGERS[LEDGER]
    assert stops > 3
    # The second branch has those records again that go on round the loop.
    expected = {(i, left): 2 if left else 1 for i in range(RECORDS) for left in range(4)}
    assert output == expected
