"""Watermarks in small loops, in every order in which the tasks can run.

Goals:

* No record arrives at a task behind a watermark of the task, unless it descends from a timer that
  has fired at that watermark in the loop.
* No record leaves the loop behind a watermark that has left it before.
* When the input pauses, all tasks come to rest after finitely many steps. Then the last watermark
  is released inside of the loop and behind it, at each task, and all timers up to it have fired.

Method: `LoopTimeModel` looks at all interleavings of the steps of all tasks. Bounds: loops of one
to three operators, nested, with two first tasks, entered at two places; parallelism 1 and 2; one to
three records that go up to five hops, and set timers that emit records.
"""

from __future__ import annotations

import pytest

from penstock.runtime.task.loop_watermarks import LoopWatermarks
from tests.simulation import loop_time_mutants as wrong
from tests.simulation.execution import Edge, Violation
from tests.simulation.loop_time_model import Idle, Item, LoopGraph, LoopTimeModel, Mark, Row


def edges(*ends: str) -> tuple[Edge, ...]:
    """Edges such as "AB", or "BA~" for a back-edge, which connect all subtasks."""
    return tuple(Edge(end[0], end[1], "hash", end.endswith("~")) for end in ends)


SELF = edges("AA~")
PAIR = edges("AB", "BA~")
NESTED = edges("AB", "BC", "CB~", "CA~")
TWO_FIRST = edges("AC", "BC", "CA~", "CB~")
RING = edges("AB~", "BA~")
LONG_RING = edges("AB~", "BC~", "CA~")
BRANCHES = edges("AB", "AC", "BD", "CD", "DA~")

#: One record, and one that sets a timer that emits, and another one.
BUSY: tuple[Item, ...] = (Row(0, 1, 3), Mark(1), Row(1, 3, 1, ((1, 2), (0, 1))), Mark(5))
SHORT: tuple[Item, ...] = (Row(0, 1, 2), Mark(1))
TIMER: tuple[Item, ...] = (Row(1, 1, 1, ((0, 2),)), Mark(3))
RISING: tuple[Item, ...] = (Row(0, 1, 4, (), 1), Mark(3))
QUIET: tuple[Item, ...] = (Mark(1),)

GRAPHS: dict[str, LoopGraph] = {
    "self-loop": LoopGraph(SELF, {"A": (BUSY,)}),
    "two tasks": LoopGraph(PAIR, {"A": (BUSY,)}),
    "timestamps that rise": LoopGraph(PAIR, {"A": (RISING,)}),
    "entered at two places": LoopGraph(PAIR, {"A": (BUSY,), "B": ((*TIMER, Mark(4)),)}),
    "entered behind the first task": LoopGraph(PAIR, {"B": (BUSY,)}),
    "nested": LoopGraph(NESTED, {"A": (BUSY,)}),
    "nested, entered at two places": LoopGraph(NESTED, {"A": (SHORT,), "C": (TIMER,)}),
    "two first tasks": LoopGraph(TWO_FIRST, {"A": (SHORT,), "B": (TIMER,)}),
    "two first tasks, of which one goes on": LoopGraph(
        TWO_FIRST, {"A": ((Mark(1), Mark(2)),), "B": ((Mark(5),),)}
    ),
    "two first tasks in a ring": LoopGraph(RING, {"A": (BUSY,), "B": (TIMER,)}),
    "three first tasks in a ring": LoopGraph(LONG_RING, {"A": (SHORT,), "C": (TIMER,)}),
    "branches": LoopGraph(BRANCHES, {"A": ((Row(0, 1, 3, ((0, 2),)), Mark(2)),)}),
    "branches, a single record": LoopGraph(BRANCHES, {"A": ((Row(0, 1, 3), Mark(1)),)}),
    "branches, entered twice": LoopGraph(
        BRANCHES, {"B": ((Row(0, 1, 3), Mark(2)),), "C": ((Row(1, 1, 2), Mark(1), Mark(2)),)}
    ),
    "self-loop, two subtasks": LoopGraph(SELF, {"A": (SHORT, QUIET)}, 2),
    "self-loop with timers, two subtasks": LoopGraph(SELF, {"A": (TIMER, QUIET)}, 2),
    "two tasks, two subtasks": LoopGraph(PAIR, {"A": ((Row(0, 1, 1), Mark(1)), QUIET)}, 2),
    "two tasks with timers, two subtasks": LoopGraph(PAIR, {"B": (TIMER, QUIET)}, 2),
    "an input that becomes idle": LoopGraph(
        PAIR, {"A": ((*SHORT, Idle(True)),), "B": ((*TIMER, Idle(True), Idle(False), Mark(4)),)}
    ),
    "inputs that are idle": LoopGraph(
        PAIR, {"A": ((*SHORT, Idle(True)),), "B": ((*TIMER, Idle(True)),)}
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_watermarks_are_released_in_time_and_not_too_early_in_every_interleaving(name: str) -> None:
    seen = LoopTimeModel(GRAPHS[name]).search()
    assert seen.worlds > 30, seen


LARGE: dict[str, LoopGraph] = {
    "two tasks, two subtasks": LoopGraph(PAIR, {"A": (SHORT, QUIET)}, 2),
    "nested, two subtasks": LoopGraph(NESTED, {"A": (SHORT, QUIET)}, 2),
    "nested, entered everywhere": LoopGraph(NESTED, {"A": (BUSY,), "B": (TIMER,), "C": (SHORT,)}),
    "two first tasks, two subtasks": LoopGraph(RING, {"A": (SHORT, QUIET), "B": (None, None)}, 2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_larger_loops(name: str) -> None:
    LoopTimeModel(LARGE[name]).search()


#: Rules that release a watermark too early, each with a loop that shows it.
TOO_EARLY: dict[type[LoopWatermarks], str] = {
    wrong.IgnoresRecords: "two tasks",
    wrong.ForgetsRecordsOfTheFiring: "self-loop",
    wrong.ReleasesBehindWithInside: "two tasks",
    wrong.OnlyFirstTasksHaveAnOutside: "entered at two places",
    wrong.DoesNotAlign: "branches, a single record",
    wrong.DoesNotWaitForBackEdges: "two tasks",
    wrong.RoundsOfOneWave: "three first tasks in a ring",
}

#: Rules that release a watermark never or without end, each with a loop that shows it.
NEVER: dict[type[LoopWatermarks], str] = {
    wrong.DoesNotFireAgain: "two tasks",
    wrong.DoesNotBringTheEnd: "two tasks",
    wrong.LosesRequests: "branches, entered twice",
    wrong.PassesOneRequestPerWave: "branches, entered twice",
    wrong.KeepsItsWaves: "two first tasks, of which one goes on",
    wrong.NeverRests: "two tasks",
}


@pytest.mark.parametrize("rule", TOO_EARLY, ids=lambda rule: str(rule.__name__))
def test_a_rule_that_releases_too_early_is_found_out(rule: type[LoopWatermarks]) -> None:
    with pytest.raises(Violation, match=r"arrives behind|leaves behind"):
        LoopTimeModel(GRAPHS[TOO_EARLY[rule]], rule, liveness=False, most_waves=7).search()


@pytest.mark.parametrize("rule", NEVER, ids=lambda rule: str(rule.__name__))
def test_a_rule_that_never_releases_is_found_out(rule: type[LoopWatermarks]) -> None:
    with pytest.raises(Violation, match=r"was not released|was left|no rest"):
        LoopTimeModel(GRAPHS[NEVER[rule]], rule).search()
