"""Algorithm 2, and the end of loops, on programs and schedules drawn at random.

Goal: each snapshot is *feasible* and *complete* (each record of the program is in exactly one of
a state and a log, however far it got), restored it comes to what an undisturbed, sequential run
comes to, and nothing waits or goes on for ever. Loops are closed only when nothing is in flight,
and the hooks at the end of input run as often as they must, also after a restore.

Method: programs of one to three operators with one to three feedbacks, over all partitioners, are
written with the API and compiled; the real tasks then run in steps drawn at random, with channels
of one batch, back-edges that spill, barriers that come early and late, and snapshots given up.
A record tells its descent, so what must come out is known (`tests/simulation/lineage.py`).

`PENSTOCK_CASES` says how many cases are drawn, `PENSTOCK_SEED` from which program on: with one
case, it is that of a failure again.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from penstock.dataflow.errors import PenstockError
from tests.simulation.interleavings import temporary_folder
from tests.simulation.mutants import MUTANTS
from tests.simulation.programs import Tally, check_case, draw_program
from tests.simulation.tasks import REAL, Compiled, Kit, Violation
from tests.sizes import sized

CASES = int(os.environ.get("PENSTOCK_CASES", sized(1_500, 40_000)))
FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))
#: Schedules of each program.
SCHEDULES = 4
PARTS = 5


def check(programs: range, kit: Kit = REAL) -> Tally:
    """Run all cases of these programs; raises `Violation` that names the seed."""
    tally = Tally()
    with temporary_folder() as folder:
        for seed in programs:
            program = draw_program(random.Random(seed))
            try:
                compiled = Compiled.of(program)
                expected = program.result(closes=False), program.result()
                for schedule in range(SCHEDULES):
                    root = Path(folder, f"{seed}.{schedule}")
                    check_case(compiled, expected, f"{seed}.{schedule}", root, tally, kit)
                    shutil.rmtree(root, ignore_errors=True)  # most have none
            except (Violation, PenstockError) as error:
                raise Violation(
                    f"{error}\nPENSTOCK_SEED={seed} PENSTOCK_CASES=1: {program}"
                ) from error
    return tally


def _programs(part: int) -> range:
    count = max(1, CASES // SCHEDULES)
    return range(FIRST + count * part // PARTS, FIRST + count * (part + 1) // PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_snapshots_of_random_loops_are_complete_and_loops_end(part: int) -> None:
    tally = check(_programs(part))
    if tally.cases >= 500:
        # The cases are worth their while: records were in flight, rounds of hooks were run.
        assert tally.snapshots > tally.cases
        assert min(tally.logged, tally.rounds, tally.given_up, tally.spilled) > 20, tally


def test_an_abort_that_is_heard_amid_the_last_hook_is_heeded_after_it() -> None:
    assert check(range(3563, 3564)).cases == SCHEDULES


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_way_is_found_out_soon(name: str) -> None:
    # By chance it may show in other ways than the one that its name says.
    with pytest.raises(Violation):
        check(range(200), MUTANTS[name][0])
