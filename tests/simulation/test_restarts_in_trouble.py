"""Something else happens while restarted tasks repeat their steps.

A stop or a savepoint waits until all records are sent again. Another failure lets the region
restart. One of the inputs has ended long before, so its channels and tasks have, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import DataStream, GeneratorSource, StreamExecutionEnvironment
from penstock.runtime.jobmanager.attempt.task_restarts import TaskRestarts
from penstock.testing.simulation import Fault, Schedule
from penstock.testing.simulation.simulated_run import SimulatedRun
from tests.simulation.deep_jobs import KEYS, Numbered, Together
from tests.simulation.test_task_restarts import MOST_SEEDS, SINGLE, simulation_of


def _with_a_short_input(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    short = env.from_source(GeneratorSource(lambda i: i, 12), None, "short")
    one, two = (
        each.map(lambda i: (i, 0)).key_by(lambda record: sum(record) % KEYS)
        for each in (stream, short)
    )
    both = one.connect(two).process(Together())
    return both.key_by(lambda record: sum(record) % KEYS).process(Numbered()).map(lambda r: r[0])


@pytest.mark.parametrize("what", ["stop", "savepoint", "worker"])
def test_nothing_is_lost_or_doubled(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    restarting, during = set[int](), Counter[str]()
    begin, strike = TaskRestarts._start, SimulatedRun._strike

    async def starting(self: TaskRestarts, *arguments: Any) -> None:
        restarting.add(id(self))
        try:
            await begin(self, *arguments)
        finally:
            restarting.discard(id(self))

    def striking(self: SimulatedRun, fault: Fault) -> None:
        during[fault.what] += bool(restarting) and fault.what == what
        strike(self, fault)

    monkeypatch.setattr(TaskRestarts, "_start", starting)
    monkeypatch.setattr(SimulatedRun, "_strike", striking)
    simulation, happened = simulation_of(_with_a_short_input), Counter[str]()
    for seed in range(MOST_SEEDS):
        if during[what] >= 2:
            break
        faults = (
            Fault("worker", "snapshot", 3, seed % 7 * 0.003),
            Fault(what, "before", 0, 0.02 + seed % 5 * 0.01),
        )
        schedule = Schedule(faults, (3,), interval_seconds=0.03, delay_seconds=0.004)
        result = simulation.run_schedule(seed, schedule)
        assert simulation.failure(result) is None, f"seed {seed}: {simulation.failure(result)}"
        happened += result.happened
    assert happened[SINGLE] and during[what] >= 2, (happened, during)
