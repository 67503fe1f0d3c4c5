"""Algorithm 1 on small graphs, in every order in which its parts can run.

Goal: each snapshot is *feasible* (every task's state is exactly what the sources had emitted
before their barriers, and restoring it and running the rest gives what an undisturbed run gives)
and *terminates* (no order of events leaves anything waiting for ever).

Method: the real channels, gates, outlets, routers, tasks, source feeds, protocol, keyed state and
persisters are driven one step at a time. A depth-first search tries every choice at every point:
which task makes its next step, whether its cut is written now, at which source the barrier is
injected, whether the snapshot is given up now, and which task hears of it first. States that were
met before are not entered again; the number of distinct interleavings that this covers is
counted over the graph of states. Bounds: up to 5 tasks, 1 to 3 records per source, 1 or 2
barriers, at most one abort, channels of capacity 1 with one record per batch; but in one scenario
a cut is written in the step that takes it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.runtime.task import Task
from penstock.snapshot.acyclic import AcyclicProtocol
from penstock.snapshot.events import (
    BarrierArrived,
    Block,
    Command,
    CopyState,
    Event,
    SnapshotAborted,
    SnapshotKind,
    Unblock,
)
from tests.simulation.interleavings import Graph, Kit, Search, Violation

JOIN = Graph(
    {"a": ("a1", "a2"), "b": ("b1", "b2")},
    ("t",),
    (("a", ("t",), "forward"), ("b", ("t",), "forward")),
)
THREE = Graph(
    {"a": ("a1",), "b": ("b1",), "c": ("c1",)},
    ("t",),
    (("a", ("t",), "forward"), ("b", ("t",), "forward"), ("c", ("t",), "forward")),
)
DIAMOND = Graph(
    {"a": ("a1", "a2")},
    ("l", "r", "t"),
    (("a", ("l", "r"), "broadcast"), ("l", ("t",), "forward"), ("r", ("t",), "forward")),
)
SHUFFLE = Graph(
    {"a": ("a1", "a2"), "b": ("b1", "b4")},
    ("x", "y", "t"),
    (
        ("a", ("x", "y"), "hash"),
        ("b", ("x", "y"), "hash"),
        ("x", ("t",), "forward"),
        ("y", ("t",), "forward"),
    ),
)


ONE_EACH: dict[str, tuple[str, ...]] = {"a": ("a1",), "b": ("b1",)}
THREE_EACH: dict[str, tuple[str, ...]] = {"a": ("a1", "a2", "a3"), "b": ("b1", "b2", "b3")}
SCENARIOS = {
    "two sources of two records": JOIN,
    "two sources of three records": replace(JOIN, sources=THREE_EACH),
    "two sources, cuts written late": replace(JOIN, sources=ONE_EACH, lazy=True),
    "two sources, two barriers, an abort": replace(JOIN, sources=ONE_EACH, barriers=2, aborts=True),
    "diamond, two records, two barriers": replace(DIAMOND, barriers=2),
    "two sources, shuffle, two tasks, one sink": replace(SHUFFLE, sources=ONE_EACH),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_snapshot_is_feasible_and_terminates_in_every_interleaving(name: str) -> None:
    explored = Search(SCENARIOS[name], Kit()).run()
    assert explored.interleavings > 100_000, explored
    # Different cuts were met, so the search did move the barrier about.
    assert len(explored.snapshots) >= 2, explored


# ---- wrong protocols, which the same search must find out


class CopiesLate(Task):
    """Broadcasts first, and copies its state after the next record."""

    extra: int | None = None

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, CopyState) and self.gate.channels:
                self.extra = command.number
            else:
                super()._do([command])

    def step(self) -> bool:
        late, self.extra = self.extra, None
        progress = super().step()
        if late is not None:
            self._kinds[late] = SnapshotKind.CHECKPOINT
            self._copy_state(late)
        return progress


class BlocksNothing(AcyclicProtocol):
    """Leaves out lines 9 and 15."""

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        return [c for c in commands if not isinstance(c, Block | Unblock)]


class UnblocksEarly(AcyclicProtocol):
    """Unblocks as soon as a second input has brought the barrier."""

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        if any(isinstance(command, Block) for command in commands) and len(self.blocked) > 1:
            commands.append(Unblock(tuple(self.blocked)))
        return commands


class MarksStaleBarriers(AcyclicProtocol):
    """Takes the barrier of a snapshot that was given up for one of the snapshot at hand."""

    def handle(self, event: Event) -> list[Command]:
        if (
            isinstance(event, BarrierArrived)
            and self.number is not None
            and event.number < self.number
        ):
            event = BarrierArrived(event.channel, self.number)
        return super().handle(event)


class IgnoresAborts(AcyclicProtocol):
    """Waits for barriers that a source, which was told in time, will never send."""

    def handle(self, event: Event) -> list[Command]:
        ignored = isinstance(event, SnapshotAborted) and self.inputs
        return [] if ignored else super().handle(event)


@pytest.mark.parametrize(
    ("kit", "graph", "how"),
    [
        (Kit(task=CopiesLate), JOIN, "at positions"),
        (Kit(BlocksNothing), JOIN, "at positions"),
        (Kit(UnblocksEarly), THREE, "at positions"),
        (
            Kit(MarksStaleBarriers),
            replace(JOIN, sources=ONE_EACH, barriers=2, aborts=True),
            "at positions",
        ),
        (Kit(IgnoresAborts), replace(JOIN, sources=ONE_EACH, aborts=True), "waits for ever"),
    ],
    ids=["copies late", "blocks nothing", "unblocks early", "marks stale", "ignores aborts"],
)
def test_a_wrong_protocol_is_found_out(kit: Kit, graph: Graph, how: str) -> None:
    with pytest.raises(Violation, match=how):
        Search(graph, kit).run()
