"""Jobs with loops in real processes: killed with records in flight, multiplying, ending, stopped.

The looping job (`looping.py`) puts out the complete history of all its records; kills are aimed at
phases of a snapshot (`aims.py`) or fall at random. What was committed is counted: nothing may be
missing and nothing may be there twice. Most tests also require that what was restored had records
in its logs, since a snapshot of a loop that happened to be empty shows nothing.
"""

import json
import random
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.snapshot.storage.store import Store
from tests.processes.aims import strikes
from tests.processes.harness import Killer, committed, run, run_to_the_end
from tests.processes.looping import LoopSettings, history, looping_job, restored_logs
from tests.processes.parts import Slow, let_all_go
from tests.sizes import sized

RESIDENT = 64 * 1024
#: Where the state is. `make test` has the more intricate one; kills of workers in each phase, and
#: kills at random, have both.
ENGINES = [
    pytest.param(0, id="rocksdb"),
    pytest.param(RESIDENT, id="inline", marks=pytest.mark.long),
]


def _killed(settings: LoopSettings) -> tuple[list[dict], list[dict]]:
    """Run with aimed kills to the end; returns the events and the restarts of the last run."""
    watcher = Killer(random.Random(0), kills=0)
    result = run_to_the_end(settings, watcher, job=looping_job)
    struck = strikes(settings.folder)
    assert [(s["phase"], s["target"]) for s in struck] == list(settings.aims)
    assert history(settings, committed(settings.output)) == (0, 0), struck
    logs = restored_logs(watcher.events)
    assert len([records for records in logs if records]) >= len(struck) - 1, (logs, struck)
    for strike in struck:
        if strike["target"] == "worker":
            # How it ended may come to be known too late, after the end of its connection.
            cause = f"(pid {strike['pid']})"
            told = [e["cause"] for e in watcher.events if e["event"] == "restarting"]
            assert any(cause in one for one in told), (strike, told)
    return watcher.events, result.loops


@pytest.mark.parametrize(
    ("inline_threshold", "phases"),
    [
        (0, ("before the cut", "while logging", "log written", "acknowledged")),
        (RESIDENT, ("while logging", "log written", "acknowledged", "published", "committing")),
    ],
    ids=["rocksdb", "inline"],
)
def test_workers_killed_in_each_phase_of_a_snapshot_lose_and_double_nothing(
    tmp_path: Path, inline_threshold: int, phases: tuple[str, ...]
):
    aims = tuple((phase, "worker") for phase in phases)
    _killed(LoopSettings(tmp_path, inline_threshold=inline_threshold, aims=aims))


@pytest.mark.parametrize("inline_threshold", ENGINES)
def test_a_worker_killed_again_while_the_log_is_replayed_loses_and_doubles_nothing(
    tmp_path: Path, inline_threshold: int
):
    aims = (("while logging", "worker"), ("replaying", "worker"), ("replaying", "worker"))
    events, _ = _killed(LoopSettings(tmp_path, inline_threshold=inline_threshold, aims=aims))
    restored = [e["snapshot"] for e in events if e["event"] == "restarted"]
    assert len(set(restored)) == 1, "one snapshot was restored three times"


@pytest.mark.parametrize("inline_threshold", ENGINES)
def test_a_jobmanager_killed_in_any_phase_is_resumed_without_loss(
    tmp_path: Path, inline_threshold: int
):
    phases = ("while logging", "replaying", "acknowledged", "published", "committing")
    aims = tuple((phase, "jobmanager") for phase in phases)
    _killed(LoopSettings(tmp_path, inline_threshold=inline_threshold, aims=aims))


def test_records_in_flight_are_dealt_out_anew_at_another_parallelism(tmp_path: Path):
    aims = (("while logging", "jobmanager"), ("log written", "jobmanager"))
    settings = LoopSettings(tmp_path, inline_threshold=0, aims=aims)
    events: list[dict] = []
    for parallelism, resume in ((2, None), (3, "newest")):
        with pytest.raises(StoreError, match="killed by signal 9"):
            run(
                looping_job(settings),
                parallelism=parallelism,
                resume=resume,
                progress=events.append,
            )
    run(looping_job(settings), parallelism=1, resume="newest", progress=events.append)
    first, second = restored_logs(events)
    assert first and second
    assert history(settings, committed(settings.output)) == (0, 0), strikes(tmp_path)


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_loop_that_spills_to_disk_loses_and_doubles_nothing(tmp_path: Path, target: str):
    phases = ("while logging", "log written", "replaying")
    settings = LoopSettings(
        tmp_path,
        rate=None,
        padding=400,
        memory=256 * 1024,
        aims=tuple((phase, target) for phase in phases),
    )
    _, loops = _killed(settings)
    assert loops[0]["spilled_bytes_max"] > 0


@pytest.mark.parametrize("seed", range(sized(2, 8)))
def test_kills_at_random_lose_and_double_nothing(tmp_path: Path, seed: int):
    inline_threshold = seed % 2 * 4096
    settings = LoopSettings(tmp_path, interval_ms=30, inline_threshold=inline_threshold, gated=True)
    targets = ("worker", "worker", "jobmanager", "both")
    killer = Killer(
        random.Random(seed), kills=5, targets=targets, after_snapshots=None, gate=settings.gate
    )
    run_to_the_end(settings, killer, job=looping_job)
    assert len(killer.killed) >= 5, f"seed {seed}"
    assert history(settings, committed(settings.output)) == (0, 0), f"seed {seed}"


# ---- more records than memory, and than disk


def _grown(value: tuple[int, int, str]) -> list[tuple[int, int, str]]:
    number, level, _ = value
    if level == 3:
        return [(number, 4, "")]
    grown = [number * 10 + digit for digit in range(10)]
    return [(number, level + 1, f"{number:1000}") for number in grown]


def _growing_job(folder: Path, roots: int) -> StreamExecutionEnvironment:
    """Each root becomes 1,000 records of a kilobyte within a loop of two tasks, one bounded edge
    and one back-edge, and buffers of one small batch; what leaves it is slow until it is let go."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_buffer_size(32)
    env.config.channel_batches = 1
    env.set_memory(4 << 20)
    again = env.create_feedback("grow")
    numbers = env.from_generator(lambda i: (i, 0, ""), roots)
    grown = numbers.union(again).key_by(lambda v: v[0] % 97).flat_map(_grown)
    again.close_with(grown.filter(lambda v: v[1] < 4).rebalance().map(lambda v: v))
    slow = Slow(0.002, folder / "gate")
    leaving = grown.filter(lambda v: v[1] == 4).rebalance().map(slow)
    leaving.map(lambda v: v[0]).sink_to(FileSink(folder / "out", JsonLines()))
    return env


def test_a_loop_that_multiplies_by_a_thousand_ends_with_bounded_memory(tmp_path: Path):
    peaks = []
    for roots in (1, 40):
        folder = tmp_path / str(roots)
        folder.mkdir()
        report = folder / "report.json"
        meanwhile: list[int] = []

        def note(event: dict[str, Any], folder=folder, meanwhile=meanwhile) -> None:
            if event["event"] == "snapshot" and event["log_bytes"] > 4_000_000:
                meanwhile.append(event["number"])
                if len(meanwhile) == 3:
                    let_all_go(folder / "gate")

        result = run(_growing_job(folder, roots), report=str(report), progress=note)
        assert sorted(committed(folder / "out")) == list(range(roots * 1000))
        peaks.append(max(json.loads(report.read_text())["peak_worker_bytes"]))
    assert len(meanwhile) >= 3, result.snapshots
    assert result.loops[0]["spilled_bytes_max"] > 2_000_000
    # In the loop were tens of megabytes at a time.
    assert peaks[1] - peaks[0] < 24_000_000, (peaks, result.loops)


def test_a_full_disk_under_a_loop_fails_the_job_and_leaves_its_last_snapshot(tmp_path: Path):
    # All that is put out would fit into one file that is not too large, and what goes round is
    # many times as much.
    settings = LoopSettings(
        tmp_path,
        count=1_000,
        parallelism=1,
        rate=None,
        pace=5,
        padding=10_000,
        memory=256 * 1024,
        interval_ms=500,
        full_disk=True,
    )
    env = looping_job(settings).set_restart_strategy(RestartStrategies.no_restart())
    # A snapshot may find the disk full as well, and before the loop does.
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1_000)
    with pytest.raises(StoreError) as caught:
        run(env)
    text = str(caught.value)
    assert (
        "the loop 'Map' → 'Keyed Process' has more records in flight than fit into memory" in text
    )
    assert "cannot be written to disk" in text and "resume it from its last snapshot" in text
    newest = Store(settings.job).newest()
    assert newest is not None
    Store(settings.job).verify(newest, checksums=True)

    free = replace(settings, full_disk=False, pace=100)
    events: list[dict] = []
    run(looping_job(free), resume="newest", progress=events.append)
    assert restored_logs(events)[0] > 0
    assert history(free, committed(free.output)) == (0, 0)


# ---- the end


@pytest.mark.parametrize("checkpointing", [True, False])
def test_loops_whose_sources_are_bounded_end_by_themselves(tmp_path: Path, checkpointing: bool):
    settings = LoopSettings(tmp_path, count=300, rate=None, pace=1000)
    env = looping_job(settings)
    if not checkpointing:
        env.config.checkpoint_interval_seconds = env.config.checkpoint_dir = None
    result = run(env)
    assert not result.stopped
    assert history(settings, committed(settings.output)) == (0, 0)


class _Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value)

    def end_input(self, ctx):
        yield self.sum.value()


class _Enough(Exception):
    pass


def test_a_loop_ends_though_another_source_of_the_job_never_does(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    halving = env.from_collection([1024] * 30).rebalance().iterate()
    halved = halving.map(lambda n: n // 2)
    halving.close_with(halved.filter(lambda n: n > 1))
    # Told at the end of input, which the loop has to pass on.
    halved.key_by(lambda n: n % 7).process(_Total()).sink_to(
        FileSink(tmp_path / "out", JsonLines())
    )
    ticks = env.from_generator(lambda i: i, None, 500)
    ticks.sink_to(FileSink(tmp_path / "ticks", JsonLines()))
    ticking: list[int] = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "committed" and committed(tmp_path / "out"):
            ticking.append(len(committed(tmp_path / "ticks")))
            if ticking[-1] > ticking[0] or len(ticking) == 1_000:
                raise _Enough

    with pytest.raises(_Enough):
        run(env, progress=watch)
    expected = Counter[int]()
    for n in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        expected[n % 7] += n * 30
    assert Counter(committed(tmp_path / "out")) == Counter(expected.values())
    assert ticking[0] < ticking[-1]


def test_ctrl_c_stops_a_looping_job_that_never_ends_and_it_is_resumed(tmp_path: Path):
    # More comes than the loop can take, so that there is a backlog at any time.
    settings = LoopSettings(tmp_path, unbounded=True, rate=1_000, pace=5)
    snapshots = [0]

    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot":
            snapshots.append(event["log_records"])
            if len(snapshots) == 6:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(looping_job(settings), progress=interrupt)
    # Every number that was read has made its first visit before the last snapshot.
    highest = max(r[0] for r in committed(settings.output) if len(r) == 3)
    bounded = replace(settings, unbounded=False, count=highest + 200, rate=4_000, pace=100)
    events: list[dict] = []
    run(looping_job(bounded), resume="newest", progress=events.append)
    assert restored_logs(events)[0] == snapshots[-1] > 0
    assert history(bounded, committed(settings.output)) == (0, 0)
