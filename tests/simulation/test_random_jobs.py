"""Random jobs, disturbed at random: nothing is lost, and nothing doubled that must not be.

Goal: whatever a program consists of (keyed state, hooks, loops, splits that never end), in every
checkpointing mode, after kills of workers and of the JobManager, orderly stops and resumes in
another mode or at another parallelism, its committed output is that of an undisturbed run. With at
least once, records may be repeated after a failure, but not after a stop.

Method: `tests/simulation/random_jobs`. `make random-jobs CASES=10000` runs more of them. A failure
names its seed, and the command that runs that program again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.runtime.taskmanager import task_factory
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Command,
    Event,
    UnblockChannels,
)
from tests.simulation.random_jobs.runner import run_case
from tests.sizes import sized
from tests.soak.random_jobs import run_chunk

PROGRAMS, PART = sized(300, 3_000), 30


@pytest.mark.parametrize("first", range(0, PROGRAMS, PART))
def test_random_jobs_lose_and_double_nothing(first: int) -> None:
    tally, failures = run_chunk(range(first, first + PART))
    assert not failures, "\n\n".join(failures)
    assert not tally.missed(), f"too little happened: {tally.table()}"


def test_the_same_seed_gives_the_same_case() -> None:
    first, second = run_case(5), run_case(5)
    assert first.happened == second.happened
    assert [line for line in first.log if "/" not in line] == [
        line for line in second.log if "/" not in line
    ]


class NeverAligns(AtLeastOnceProtocol):
    """Does not align the last snapshot of a job either."""

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, BarrierArrived):
            event = replace(event, align=False)
        return super().handle(event)


class NeverBlocks(AlignedProtocol):
    """Takes records from behind a barrier before the cut."""

    def handle(self, event: Event) -> list[Command]:
        return [
            c for c in super().handle(event) if not isinstance(c, BlockChannel | UnblockChannels)
        ]

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        self.blocked.pop(event.channel, None)
        return super()._barrier(event)


@pytest.mark.parametrize(
    ("name", "mutant", "mode", "first"),
    [
        # Few jobs find it out: 76 is the only one of the first 90.
        ("AtLeastOnceProtocol", NeverAligns, "at least once", 70),
        ("AlignedProtocol", NeverBlocks, "exactly once", 0),
    ],
)
def test_a_wrong_protocol_is_found_out(
    name: str, mutant: type, mode: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_factory, name, mutant)
    results = (run_case(seed, [mode]) for seed in range(first, first + 100))
    wrong = next((result for result in results if not result.right), None)
    assert wrong is not None and wrong.doubled and not wrong.crashes
