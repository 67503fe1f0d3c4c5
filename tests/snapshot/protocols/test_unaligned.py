"""Unaligned snapshots: each row of the table, then whole jobs in every order.

The model is `simulation/mode_model.py`: a task can be told of a barrier, or that its time is over,
at any moment: with a record in hand, with records that wait for room in its outputs. A snapshot
must end whatever waits, and hold each record in one state or one log.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.base import Phase
from penstock.snapshot.protocols.events import (
    AlignmentTimedOut,
    BarrierSent,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    Overtake,
    StartAlignmentTimer,
    StartLog,
    UnblockChannels,
)
from penstock.snapshot.protocols.unaligned import UnalignedProtocol
from tests.simulation.execution import Violation
from tests.simulation.mode_jobs import Job, abandoned, jobs, small
from tests.simulation.mode_model import Mode, ModeModel
from tests.snapshot.protocols.driven import DrivenProtocol


class Driven(DrivenProtocol[UnalignedProtocol]):
    """Regular inputs a and b and the back-edge x."""

    def __init__(
        self, inputs: str = "abx", back_edges: str = "x", align_first: bool = False
    ) -> None:
        super().__init__(UnalignedProtocol(inputs, back_edges, align_first=align_first))

    def both(self, channel: str, number: int = 1) -> list[Command]:
        """A barrier that is taken as soon as it is there."""
        return self.announced(channel, number) + self.barrier(channel, number)


def cut(number: int, logged: str = "abx") -> list[Command]:
    return [CopyState(number), StartLog(number, tuple(logged)), Overtake(number)]


def aligned(number: int, logged: str = "x") -> list[Command]:
    return [CopyState(number), StartLog(number, tuple(logged)), Broadcast(number)]


def test_a_source_makes_its_cut_at_once_and_overtakes_what_it_has_sent() -> None:
    source = Driven("", "")
    assert source.barrier(None) == [*cut(1, ""), EndLog(1)]
    assert source.barrier(None) == []


def test_a_task_makes_its_cut_as_the_first_barrier_reaches_the_gate_and_logs_all_channels() -> None:
    task = Driven()
    assert task.announced("b") == cut(1)
    # The gate says at once that there is a barrier in b, and after some time in the others.
    assert task.announced("b") == task.announced("x") == task.barrier("b") == []
    assert task.announced("a") == [EndLog(1)]
    assert task.barrier("a") == task.barrier("x") == []
    assert task.protocol.phase is Phase.IDLE


def test_a_patient_task_starts_its_timer_and_aligns() -> None:
    task = Driven(align_first=True)
    assert task.announced("a") == [StartAlignmentTimer(1)]
    assert task.barrier("a") == [BlockChannel("a")]
    assert task.both("x") == [BlockChannel("x")]
    assert task.both("b") == [*aligned(1, ""), UnblockChannels(("a", "x"))]
    assert task.handle(BarrierSent(1)) == [EndLog(1)]
    assert task.handle(BarrierSent(1)) == task.handle(AlignmentTimedOut(1)) == []


def test_an_aligned_cut_logs_back_edges_and_ends_when_its_barrier_has_left() -> None:
    task = Driven("ax", align_first=True)
    assert task.both("a") == [StartAlignmentTimer(1), *aligned(1)]
    assert task.announced("x") == []
    assert task.handle(BarrierSent(1)) == [EndLog(1)]


def test_a_patient_source_broadcasts_and_overtakes_when_the_time_is_over() -> None:
    source = Driven("", "", align_first=True)
    assert source.barrier(None) == [StartAlignmentTimer(1), *aligned(1, "")]
    assert source.handle(AlignmentTimedOut(1)) == [Overtake(1), EndLog(1)]
    assert source.handle(BarrierSent(1)) == []


@pytest.mark.parametrize("urgent", [False, True], ids=["time is over", "an urgent barrier"])
def test_who_has_waited_long_enough_makes_the_cut_and_logs_what_is_not_blocked(
    urgent: bool,
) -> None:
    task = Driven(align_first=True)
    task.both("a")
    commands = task.announced("b", urgent=True) if urgent else task.handle(AlignmentTimedOut(1))
    assert commands == [*cut(1, "bx"), UnblockChannels(("a",))]
    assert task.announced("b") == []
    assert task.announced("x") == [EndLog(1)]


def test_an_urgent_barrier_is_not_waited_with() -> None:
    assert Driven("ab", "", align_first=True).announced("a", urgent=True) == cut(1, "ab")


class WithBroadcast(Driven):
    """The inputs a and b, and the broadcast inputs c and d."""

    def __init__(self, align_first: bool = False) -> None:
        super().__init__("abcd", "", align_first)
        self.protocol.aligned = frozenset("cd")


def test_the_cut_waits_for_the_barriers_of_broadcast_inputs_and_for_no_others() -> None:
    task = WithBroadcast()
    assert task.announced("a") == task.announced("c") == []
    assert task.barrier("c") == [BlockChannel("c")]
    assert task.barrier("a") == [BlockChannel("a")]
    # The barrier of b is not there yet, or waits behind records.
    assert task.both("d") == [*cut(1, "b"), UnblockChannels(("c", "a"))]
    assert task.announced("b") == [EndLog(1)]
    assert task.protocol.phase is Phase.IDLE


@pytest.mark.parametrize("urgent", [False, True], ids=["time is over", "an urgent barrier"])
def test_it_waits_for_them_also_when_it_has_waited_long_enough(urgent: bool) -> None:
    task = WithBroadcast(align_first=True)
    assert task.both("a") == [StartAlignmentTimer(1), BlockChannel("a")]
    task.both("c")
    late = task.announced("d", urgent=True) if urgent else task.handle(AlignmentTimedOut(1))
    assert late == []
    assert task.both("d") == [*cut(1, "b"), UnblockChannels(("a", "c"))]
    aligning = WithBroadcast(align_first=True)
    for channel in "abc":
        aligning.both(channel)
    assert aligning.both("d") == [*aligned(1, ""), UnblockChannels(("a", "b", "c"))]


def test_a_snapshot_that_waits_for_broadcast_inputs_is_given_up() -> None:
    task = WithBroadcast()
    task.both("c")
    assert task.abort(1) == [UnblockChannels(("c",))]
    assert task.both("d") == []
    assert task.both("d", 2) == [BlockChannel("d")]
    assert task.both("c", 3) == [UnblockChannels(("d",)), BlockChannel("c")]


def test_a_higher_barrier_gives_up_the_lower_snapshot() -> None:
    task = Driven()
    task.announced("a")
    assert task.announced("b", 2) == [DropLog(1), *cut(2)]
    assert task.announced("x", 1) == []
    aligning = Driven(align_first=True)
    aligning.both("a")
    assert aligning.announced("b", 2) == [UnblockChannels(("a",)), StartAlignmentTimer(2)]
    assert aligning.handle(AlignmentTimedOut(1)) == []
    source = Driven("", "", align_first=True)
    source.barrier(None)
    assert source.barrier(None, 2) == [DropLog(1), StartAlignmentTimer(2), *aligned(2, "")]
    assert source.handle(BarrierSent(1)) == []


def test_a_snapshot_that_is_given_up_is_forgotten_and_its_barriers_are_stale() -> None:
    task = Driven()
    task.announced("a")
    assert task.abort(0) == []
    assert task.abort(1) == [DropLog(1)]
    assert task.both("b") == []
    aligning = Driven(align_first=True)
    aligning.both("a")
    assert aligning.abort(1) == [UnblockChannels(("a",))]
    assert aligning.handle(AlignmentTimedOut(1)) == aligning.both("b") == []
    assert aligning.abort(4) == aligning.both("a", 4) == []
    assert aligning.complete(4) == []


def test_impossible_events_are_refused_and_change_nothing() -> None:
    task = Driven()
    with pytest.raises(ProtocolError, match="no input"):
        task.announced("z")
    assert task.protocol.phase is Phase.IDLE


def test_validate_finds_what_cannot_be() -> None:
    def broken(match: str, **changes: object) -> None:
        protocol = UnalignedProtocol("ab", align_first=True)
        for name, value in changes.items():
            setattr(protocol, name, value)
        with pytest.raises(ProtocolError, match=match):
            protocol.validate()

    a, ab = {"a": None}, {"a": None, "b": None}
    broken("inconsistent", number=1)
    broken("blocked for nothing", blocked=a)
    broken("overdue", phase=Phase.ALIGNING, number=1, blocked=ab)
    broken("overdue", phase=Phase.ALIGNING, number=1, align_first=False)
    broken("nothing to wait for", phase=Phase.LOGGING, number=1, sent=True, marked={"a", "b"})


# ---- whole jobs

UNALIGNED = Mode(UnalignedProtocol, unaligned=True)
ALIGN_FIRST = Mode(partial(UnalignedProtocol, align_first=True), unaligned=True)


@pytest.mark.parametrize("name", small())
def test_a_snapshot_holds_each_record_once_in_every_order(name: str) -> None:
    found = ModeModel(small()[name], UNALIGNED).search()
    assert min(found.cuts, found.logged, found.overtaken, found.in_hand) > 4, found


def test_so_does_one_of_a_join_with_more_records() -> None:
    assert ModeModel(jobs()["join"], UNALIGNED).search().cuts > 100


def _patient_jobs() -> dict[str, Job]:
    found = small()
    # There are too many orders of these, with timers that go off at any moment.
    found["shuffle"] = replace(found["shuffle"], sources={"S": (((0, 1),), ())})
    found["diamond"] = replace(found["diamond"], sources={"S": (((0, 2),),)})
    return found


@pytest.mark.parametrize("name", _patient_jobs())
def test_so_does_one_that_aligns_first_whenever_it_stops_to(name: str) -> None:
    found = ModeModel(_patient_jobs()[name], ALIGN_FIRST).search()
    assert min(found.cuts, found.logged, found.overtaken, found.in_hand) > 2, found


AGAIN = [(name, UNALIGNED) for name in ("join", "self-loop", "two-task loop")]
AGAIN += [(name, ALIGN_FIRST) for name in ("join", "self-loop")]


@pytest.mark.parametrize(("name", "mode"), AGAIN)
def test_so_does_the_one_after_a_snapshot_that_was_given_up(name: str, mode: Mode) -> None:
    assert ModeModel(abandoned()[name], mode).search().cuts > 4


class LogsNoBackEdge(UnalignedProtocol):
    """Back-edges are not logged."""

    def handle(self, event: Event) -> list[Command]:
        return [
            StartLog(c.number, tuple(i for i in c.channels if i in self.regular))
            if isinstance(c, StartLog)
            else c
            for c in super().handle(event)
        ]


class NeverUnblocks(UnalignedProtocol):
    """Leaves blocked what it has blocked."""

    def handle(self, event: Event) -> list[Command]:
        return [c for c in super().handle(event) if not isinstance(c, UnblockChannels)]


@pytest.mark.parametrize(
    ("mode", "name", "how"),
    [
        (replace(UNALIGNED, hand_lost=True), "join", "lost"),
        (replace(UNALIGNED, overtaken_lost=True), "join", "lost"),
        (replace(ALIGN_FIRST, overtaken_lost=True), "diamond", "lost"),
        (replace(UNALIGNED, runs_on=True), "join", "doubled"),
        (replace(UNALIGNED, make=LogsNoBackEdge), "self-loop", "lost"),
        (replace(UNALIGNED, make=LogsNoBackEdge), "nested", "lost"),
        (
            replace(ALIGN_FIRST, make=partial(NeverUnblocks, align_first=True)),
            "join",
            "waits for ever",
        ),
    ],
)
def test_a_defect_is_found_out(mode: Mode, name: str, how: str) -> None:
    with pytest.raises(Violation, match=f"^{how}"):
        ModeModel(small()[name], mode).search()
