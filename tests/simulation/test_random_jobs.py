"""Random jobs, disturbed at random: nothing is lost, and nothing doubled that must not be.

Goal: whatever a program consists of (keyed state, hooks, loops, splits that never end), in every
checkpointing mode, after kills of workers and of the JobManager, orderly stops and resumes in
another mode or at another parallelism, its committed output is that of an undisturbed run. With at
least once, records may be repeated after a failure, but not after a stop.

Method: `tests/simulation/random_jobs`. `make random-jobs CASES=10000` runs more of them. A failure
names its seed, and the command that runs that program again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.connectors.cache import COMPLETE, CacheSink, RecordCache
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.graph import batch_mode
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.jobmanager import jobmanager
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.operators import registry
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.runtime.taskmanager import protocol_choice
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Command,
    Event,
    UnblockChannels,
)
from penstock.snapshot.state import MISSING
from penstock.snapshot.state.cold.row_store import RowStore
from tests.simulation import run_program
from tests.simulation.random_jobs.caches import run_cache_case
from tests.simulation.random_jobs.runner import run_case
from tests.sizes import sized
from tests.soak.random_jobs import run_chunk

PROGRAMS, PART = sized(150, 3_000), 30


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


def never_aligns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_choice, "AtLeastOnceProtocol", NeverAligns)


def never_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_choice, "AlignedProtocol", NeverBlocks)


def loses_evicted_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowStore, "read", lambda *_: MISSING)


def assigns_splits_on_request(patch: pytest.MonkeyPatch) -> None:
    """Read before a task knows all its splits, so that their watermarks are not counted."""
    patch.setattr(SplitAssigner, "initial_splits", lambda _: iter(()))


def replays_on_the_first_channel(patch: pytest.MonkeyPatch) -> None:
    """Let the watermarks of all subtasks of a producer count as those of its first one."""
    right = LogReplayer.replay

    def replay(
        replayer: LogReplayer, chain: int, gate: InputGate, logs: list[RestoredLog]
    ) -> Iterator[tuple[InputChannel | None, RecordBatch | TimeElement]]:
        for channel, element in right(replayer, chain, gate, logs):
            if channel is not None:
                link = channel.id.link
                channel = next(one for id, one in gate.channels.items() if id.link == link)
            yield channel, element

    patch.setattr(LogReplayer, "replay", replay)


def emits_running_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registry, "_FINAL", {})


def continues_batch_jobs(patch: pytest.MonkeyPatch) -> None:
    """Take snapshots in the middle of a batch job. None has the records that are sorted later."""

    def in_runtime_mode(graph: JobGraph, config: JobConfig) -> tuple[JobGraph, JobConfig]:
        graph, prepared = batch_mode.in_runtime_mode(graph, config)
        mode = CheckpointingMode.EXACTLY_ONCE
        return graph, replace(prepared, checkpointing_mode=mode)

    patch.setattr(run_program, "in_runtime_mode", in_runtime_mode)
    patch.setattr(jobmanager, "_interval", lambda config, settings: 0.02)


def test_a_cached_stream_that_is_read_before_it_is_complete_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = RecordCache.sink

    def complete_at_once(cache: RecordCache, resumed: bool) -> CacheSink:
        made = sink(cache, resumed)
        (Path(made.folder) / COMPLETE).touch()
        return made

    monkeypatch.setattr(RecordCache, "sink", complete_at_once)
    wrong = next((case for case in map(run_cache_case, range(100)) if not case.right), None)
    assert wrong is not None and wrong.lost and not wrong.crashes


@pytest.mark.parametrize(
    ("mutant", "mode", "shapes", "first"),
    [
        (never_aligns, "at least once", [], 50),
        (never_blocks, "exactly once", [], 0),
        (loses_evicted_entries, "exactly once", ["sliding"], 0),
        (assigns_splits_on_request, "exactly once", ["source windows"], 40),
        (replays_on_the_first_channel, "unaligned", ["source windows"], 0),
        (emits_running_results, "batch", ["count"], 0),
        (continues_batch_jobs, "batch", ["states"], 0),
    ],
)
def test_a_wrong_engine_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None],
    mode: str,
    shapes: list[str],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    results = (run_case(seed, [mode], shapes) for seed in range(first, first + 100))
    wrong = next((result for result in results if not result.right), None)
    assert wrong is not None and not wrong.crashes
    assert wrong.lost or wrong.doubled or wrong.late
