"""Algorithm 1 on small graphs, in every order in which its parts can run.

Goal: each snapshot is *feasible* (every task's state is exactly what the sources had emitted
before their barriers, and restoring it and running the rest gives what an undisturbed run gives)
and *terminates* (no order of events leaves anything waiting for ever).

Method: the real compiler, factory, channels, gates, outputs, partitioners, tasks, source feeds,
protocols, keyed state and persisters are driven one step at a time. A search tries every choice at
every point: which task makes its next step, whether its cut is written now, at which source the
barrier arrives, whether the snapshot is given up now, and which task hears of it first. States that
were met before are not entered again; the number of distinct interleavings that this covers is
counted over the graph of states. Bounds: up to 5 tasks, 1 or 2 records per source, 1 or 2 barriers,
at most one abort, channels of capacity 1 with one record per batch; but in one scenario a cut is
written in the step that takes it.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Command,
    CopyState,
    Event,
    SnapshotAborted,
    SnapshotKind,
    UnblockChannels,
)
from tests.simulation.interleavings import Search
from tests.simulation.lineage import Op, Program
from tests.simulation.tasks import Kit, Mode, Recording, Violation
from tests.sizes import sized


def sources(**rows: str) -> dict[str, Any]:
    """Sources with one subtask each; a record for each letter."""
    return {name: (tuple((f"{name}{r}", 2) for r in letters),) for name, letters in rows.items()}


INTO = (Op("t", (("a", "auto"), ("b", "auto")), keyed=True),)
JOIN = Program(sources(a="12", b="12"), INTO)
ONE_EACH = Program(sources(a="1", b="1"), INTO)
HALF = Program(sources(a="", b="1"), INTO)
DIAMOND = Program(
    sources(a="12"),
    (Op("l", (("a", "auto"),)), Op("r", (("a", "auto"),)), Op("t", (("l", "auto"), ("r", "auto")))),
)
SHUFFLE = Program(
    sources(a="12"),
    (Op("x", (("a", "hash"),), keyed=True, parallelism=2), Op("t", (("x", "auto"),))),
)
TWICE = Mode(snapshots=2, aborts=1, by_slot=True)
EACH = Mode(snapshots=2, aborts=1)

SCENARIOS = {
    "two sources of two records": (JOIN, Mode()),
    "two sources, cuts written late": (ONE_EACH, Mode(lazy=True)),
    "two sources, two barriers, an abort": (sized(HALF, ONE_EACH), TWICE),
    # This is more than can happen: the tasks of a worker hear of an abort together.
    **sized({}, {"two sources, an abort that each hears by itself": (HALF, Mode(aborts=1))}),
    "diamond, two records, two barriers": (DIAMOND, Mode(snapshots=2)),
    "shuffle, two tasks, one sink": (SHUFFLE, Mode(by_slot=True)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_snapshot_is_feasible_and_terminates_in_every_interleaving(name: str) -> None:
    explored = Search(*SCENARIOS[name]).run()
    assert explored.interleavings > 100_000, explored
    # Different cuts were met, so the search did move the barrier about.
    assert len(explored.snapshots) >= 2, explored


# ---- wrong protocols, which the same search must find out


class CopiesLate(Recording):
    """Broadcasts first, and copies its state after the next record."""

    late: int | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._execute = self.snapshots._execute
        self.snapshots._execute = self._execute_late  # type: ignore[method-assign]

    def _execute_late(self, command: Command) -> None:
        if isinstance(command, CopyState) and self.gate.channels:
            self.late = command.number
        else:
            self._execute(command)

    def step(self) -> bool:
        late, self.late = self.late, None
        progress = super().step()
        if late is not None:
            self.snapshots._kinds[late] = SnapshotKind.CHECKPOINT
            self._execute(CopyState(late))
        return progress

    def extra(self) -> int | None:
        return self.late


class BlocksNothing(AlignedProtocol):
    """Leaves out lines 9 and 15."""

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        return [c for c in commands if not isinstance(c, BlockChannel | UnblockChannels)]


class UnblocksEarly(AlignedProtocol):
    """Unblocks as soon as a second input has brought the barrier."""

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        if any(isinstance(command, BlockChannel) for command in commands) and len(self.blocked) > 1:
            commands.append(UnblockChannels(tuple(self.blocked)))
        return commands


class MarksStaleBarriers(AlignedProtocol):
    """Takes the barrier of a snapshot that was given up for one of the snapshot at hand."""

    def handle(self, event: Event) -> list[Command]:
        if (
            isinstance(event, BarrierArrived)
            and self.number is not None
            and event.number < self.number
        ):
            event = BarrierArrived(event.channel, self.number)
        return super().handle(event)


class IgnoresAborts(AlignedProtocol):
    """Waits for barriers of a snapshot that was given up."""

    def handle(self, event: Event) -> list[Command]:
        ignored = isinstance(event, SnapshotAborted) and self.inputs
        return [] if ignored else super().handle(event)


THREE = Program(
    sources(a="1", b="1", c="1"), (Op("t", (("a", "auto"), ("b", "auto"), ("c", "auto"))),)
)


@pytest.mark.parametrize(
    ("kit", "program", "mode", "how"),
    [
        (Kit(task=CopiesLate), JOIN, Mode(), "doubled"),
        (Kit(aligned=BlocksNothing), JOIN, Mode(), "doubled"),
        (Kit(aligned=UnblocksEarly), THREE, Mode(), "doubled"),
        (Kit(aligned=MarksStaleBarriers), HALF, EACH, "lost|doubled"),
        (Kit(aligned=IgnoresAborts), ONE_EACH, TWICE, "waits for ever"),
    ],
    ids=["copies late", "blocks nothing", "unblocks early", "marks stale", "ignores aborts"],
)
def test_a_wrong_protocol_is_found_out(kit: Kit, program: Program, mode: Mode, how: str) -> None:
    with pytest.raises(Violation, match=how):
        Search(program, mode, kit).run()
