"""Tasks behind tasks that repeat their steps continue, over several levels.

The keys of a level depend on the order of the records of the level before. So a repetition in
another order would lose and double records, and give them to other tasks.
"""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.testing.simulation import Fault, Schedule
from tests.simulation.deep_jobs import DEEP
from tests.simulation.test_task_restarts import MOST_SEEDS, SEEDS, SINGLE, simulation_of


@pytest.mark.parametrize("name", DEEP)
def test_levels_of_tasks_repeat_their_output(name: str) -> None:
    """Three kills: at different times after a snapshot, or in quick succession."""
    simulation, happened = simulation_of(DEEP[name]), Counter[str]()
    for seed in range(MOST_SEEDS):
        if seed >= SEEDS and happened[SINGLE] >= 3:
            break
        faults = (
            Fault("worker", "snapshot", 2, seed % 7 * 0.003),
            Fault("worker", "snapshot", 3 + seed % 2, seed % 5 * 0.007),
            Fault("worker", "snapshot", 4 + seed % 3, seed % 11 * 0.004),
        )
        schedule = Schedule(faults, (3,), interval_seconds=0.03, delay_seconds=0.004)
        result = simulation.run_schedule(seed, schedule)
        assert simulation.failure(result) is None, f"seed {seed}: {simulation.failure(result)}"
        happened += result.happened
    assert happened[SINGLE] >= 3, happened
