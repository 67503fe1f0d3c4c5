"""Algorithm 2 on small graphs with loops, in every order in which their parts can run.

Goal: each snapshot is *feasible* and *complete* (each record of the loop is in exactly one of a
state and a log), restored it comes to what an undisturbed run comes to, also by way of one more
snapshot, and no order of events leaves anything waiting for ever.

Method: as in `test_interleavings.py`, with real back-edges, logs and replays. Bounds: loops of one
to three operators, nested, sharing an operator, and entered at two places; parallelism 1, and 2
over hash and forward back-edges; one to three records that go up to five hops; one barrier, or
two with an abort; channels of capacity 1 with one record per batch. Unless a scenario says
otherwise, a cut is written in the step that completes it, what goes to another slot is there at
once, and loops are left open when they are quiet.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.interleavings import Search
from tests.simulation.lineage import Op, Program
from tests.simulation.mutants import MUTANTS
from tests.simulation.tasks import Mode, Violation
from tests.sizes import sized


def rows(*parts: tuple[int, ...]) -> Any:
    """One source: for each subtask, the hops of its records."""
    subtasks = enumerate(parts)
    return {"s": tuple(tuple((f"{i}{j}", h) for j, h in enumerate(p)) for i, p in subtasks)}


def loop(how: str, parallelism: int) -> dict[str, tuple[Op, ...]]:
    """Small loops, whose back-edges spread records so."""

    def op(name: str, *inputs: str) -> Op:
        # "B~" is fed back; the rest goes forward, from subtask to subtask.
        ends = tuple((p[0], how if p.endswith("~") else "auto") for p in inputs)
        return Op(name, ends, parallelism=parallelism)

    return {
        "self-loop": (op("A", "s", "A~"),),
        "two tasks": (op("A", "s", "B~"), op("B", "A")),
        "nested": (op("A", "s", "C~"), op("B", "A", "C~"), op("C", "B")),
        "two loops that share a task": (op("A", "s", "B~", "C~"), op("B", "A"), op("C", "A")),
        "entered at two places": (op("A", "s", "B~"), op("B", "A", "s")),
    }


FORWARD, HASH, SINGLE = loop("forward", 2), loop("hash", 2), loop("auto", 1)
SMALL = Mode(by_slot=True)
TWICE = Mode(by_slot=True, snapshots=2, aborts=1)
#: Of the records of each, so that it has not more than some thousand states.
HOPS: dict[str, tuple[int, ...]] = {
    "self-loop": (5, 3),
    "two tasks": (5, 3),
    "nested": sized((3,), (5,)),
    "two loops that share a task": sized((2,), (3,)),
    "entered at two places": sized((3,), (3, 1)),
}
SELF = Program(rows((2, 1)), SINGLE["self-loop"])
LONG = Program(rows((5, 3)), SINGLE["self-loop"])
PAIR = Program(rows((3, 1)), SINGLE["two tasks"])

SCENARIOS: dict[str, tuple[Program, Mode]] = {
    **{
        f"{name}, one task each": (Program(rows(HOPS[name]), ops), SMALL)
        for name, ops in SINGLE.items()
    },
    "self-loop, two tasks, forward": (
        Program(rows(*sized(((1,), ()), ((2,), (1,)))), FORWARD["self-loop"]),
        SMALL,
    ),
    "self-loop, two tasks, hash": (Program(rows((1,), ()), HASH["self-loop"]), SMALL),
    **sized(
        {}, {"two tasks, twice, forward": (Program(rows((1,), ()), FORWARD["two tasks"]), SMALL)}
    ),
    "self-loop, an abort": (SELF, TWICE),
    "two tasks, an abort": (Program(rows((2,)), SINGLE["two tasks"]), TWICE),
    "two tasks, cuts written late": (
        Program(rows(sized((2, 1), (3, 1))), SINGLE["two tasks"]),
        Mode(by_slot=True, lazy=True),
    ),
    "two tasks, on disk": (PAIR, Mode(by_slot=True, spill=True, files=True)),
    "two tasks, on disk, two snapshots": (PAIR, Mode(by_slot=True, spill=True, snapshots=2)),
    "two tasks, which end": (
        Program(rows((2,)), SINGLE["two tasks"]),
        Mode(by_slot=True, closes=True),
    ),
    "self-loop with a hook, which ends": (
        Program(rows((1,)), (Op("A", (("s", "hash"), ("A", "hash")), keyed=True, hook=True),)),
        Mode(by_slot=True, closes=True, lazy=True),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_snapshot_of_a_loop_is_complete_and_terminates_in_every_interleaving(
    name: str,
) -> None:
    explored = Search(*SCENARIOS[name]).run()
    assert explored.interleavings > 100, explored
    assert len(explored.snapshots) >= 2, explored


# ---- wrong ways, which the same search must find out

#: Each with a small program that shows it.
SHOWN_BY: dict[str, tuple[Program, Mode]] = {
    "line 13 as printed": (Program(rows((1,), ()), HASH["self-loop"]), SMALL),
    "back-edges are not blocked": (Program(rows((2,), ()), HASH["self-loop"]), SMALL),
    "logs begin too late": (LONG, SMALL),
    "logs end where the barrier is taken": (SELF, SMALL),
    "logs are dropped": (PAIR, SMALL),
    "logs are replayed last": (LONG, SMALL),
    "hooks run again after a restore": (
        Program(rows((1,)), (Op("A", (("s", "auto"),), hook=True), Op("B", (("A", "auto"),)))),
        Mode(by_slot=True, closes=True, snapshots=2),
    ),
}


@pytest.mark.parametrize("name", SHOWN_BY)
def test_a_wrong_way_is_found_out(name: str) -> None:
    kit, how = MUTANTS[name]
    with pytest.raises(Violation, match=how):
        Search(*SHOWN_BY[name], kit).run()
