"""Claim modes: whether a fork owns the snapshot of another job from which it starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Configuration,
    FileSink,
    GraphError,
    JsonLines,
    RecoveryClaimMode,
    SnapshotWriter,
    StreamExecutionEnvironment,
)
from penstock.dataflow.program import RunOptions, run_options
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store
from tests.processes.harness import committed
from tests.processes.parts import PartedSource, let_all_go


def original(folder: Path) -> Path:
    """Write a snapshot with a count that begins at 1000, and return its folder."""
    with SnapshotWriter(folder / "original", "counts") as writer:
        writer.operator("count", "keyed_count").put("value", "a", 1000)
    return folder / "original"


def snapshots(folder: Path) -> list[int]:
    return sorted(Store(folder).published())


def run(folder: Path, resume: Path | None, claim: RecoveryClaimMode | None, retained: int = 2):
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(10)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_in_process()
    env.config.retained = retained
    source = PartedSource(folder / "gate", 2, lambda i: "a", 300, 1000)
    words = env.from_source(source, None, "words").uid("words")
    words.key_by(lambda word: word).count().uid("count").sink_to(
        FileSink(folder / "out", JsonLines())
    ).uid("out")
    taken: list[int] = []

    def let_go_after_two(event: dict[str, Any]) -> None:
        """Let the other records come when the job has two snapshots of its own."""
        if event["event"] == "snapshot":
            taken.append(event["number"])
            if len(taken) == 2:
                let_all_go(folder / "gate")

    place, fork = None if resume is None else str(resume), resume is not None
    options = RunOptions(resume=place, fork=fork, claim_mode=claim, progress=let_go_after_two)
    with run_options(options):
        return env.execute("counts")


def counts(folder: Path) -> list[int]:
    return sorted(number for _, number in committed(folder / "out"))


@pytest.mark.parametrize("claim", [None, RecoveryClaimMode.NO_CLAIM])
def test_without_a_claim_the_snapshot_stays_and_is_not_needed_any_more(tmp_path: Path, claim):
    source = original(tmp_path)
    before = snapshots(source)
    run(tmp_path, source, claim)
    assert snapshots(source) == before
    assert counts(tmp_path) == list(range(1001, 1301))
    # No snapshot of the job refers to a file of the original.
    shutil.rmtree(source)
    job = Store(tmp_path / "job")
    for number in snapshots(tmp_path / "job"):
        job.verify(job.load(number), checksums=True)
    assert not JobPaths(tmp_path / "job").claimed.exists()


def test_a_claimed_snapshot_is_removed_when_the_job_has_enough_of_its_own(tmp_path: Path):
    source = original(tmp_path)
    assert snapshots(source)
    run(tmp_path, source, RecoveryClaimMode.CLAIM)
    assert snapshots(source) == []
    assert counts(tmp_path) == list(range(1001, 1301))
    job = Store(tmp_path / "job")
    for number in snapshots(tmp_path / "job"):
        job.verify(job.load(number), checksums=True)
    assert not JobPaths(tmp_path / "job").claimed.exists()


def test_a_job_that_has_too_few_snapshots_keeps_what_it_has_claimed(tmp_path: Path):
    source = original(tmp_path)
    run(tmp_path, source, RecoveryClaimMode.CLAIM, retained=100_000)
    assert snapshots(source) and JobPaths(tmp_path / "job").claimed.exists()


def test_a_snapshot_whose_job_runs_is_not_claimed(tmp_path: Path):
    source = original(tmp_path)
    store = Store(source)
    store.lock()
    try:
        with pytest.raises(GraphError, match=r"cannot be claimed.*no-claim"):
            run(tmp_path, source, RecoveryClaimMode.CLAIM)
    finally:
        store.unlock()
    assert snapshots(source)
    assert not JobPaths(tmp_path / "job").claimed.exists()


def test_the_mode_is_a_setting_with_flinks_key():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.configure(Configuration().set_string("execution.state-recovery.claim-mode", "CLAIM"))
    assert env.config.claim_mode is RecoveryClaimMode.CLAIM
    with pytest.raises(GraphError, match="NO_CLAIM or CLAIM"):
        env.configure(Configuration().set_string("execution.state-recovery.claim-mode", "LEGACY"))
