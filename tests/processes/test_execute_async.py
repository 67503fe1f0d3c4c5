"""`execute_async`: jobs of real processes, while their program continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import (
    ExternalizedCheckpointRetention,
    FileSink,
    GraphError,
    JobClient,
    JobError,
    JobStatus,
    JsonLines,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.snapshot.metadata.manifest import SnapshotKind
from penstock.snapshot.storage.store import Store
from tests.processes.harness import committed, wait_until


def endless(folder: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    numbers = env.from_generator(lambda i: i, None, 500)
    numbers.uid("numbers").sink_to(FileSink(folder / "out", JsonLines())).uid("out")
    return env


@contextmanager
def cancelled_at_the_end(job: JobClient) -> Iterator[None]:
    """Cancel a job when the block ends, if it still runs."""
    try:
        yield
    finally:
        job.cancel().result()


def test_two_jobs_run_at_the_same_time(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    jobs = []
    for name in ("first", "second"):
        env.from_collection([name]).sink_to(FileSink(tmp_path / name, JsonLines()))
        jobs.append(env.execute_async(name))
    results = [job.get_job_execution_result().result() for job in jobs]
    assert [result.job_name for result in results] == ["first", "second"]
    assert [committed(tmp_path / name) for name in ("first", "second")] == [["first"], ["second"]]
    assert len({job.get_job_id() for job in jobs}) == 2


def test_a_job_that_is_stopped_with_a_savepoint_continues_from_it(tmp_path: Path):
    job = endless(tmp_path).execute_async()
    with cancelled_at_the_end(job):
        savepoint = Path(job.trigger_savepoint().result())
        wait_until(lambda: committed(tmp_path / "out"), "output is committed")
        stopped = Path(job.stop_with_savepoint(False).result())
        assert job.get_job_execution_result().result().stopped
    assert job.get_job_status().result() is JobStatus.FINISHED
    for snapshot in (savepoint, stopped):
        assert (snapshot / "manifest").exists()
    numbers = committed(tmp_path / "out")
    assert sorted(numbers) == list(range(len(numbers)))


def test_a_cancelled_job_and_a_failed_one_give_errors(tmp_path: Path):
    job = endless(tmp_path).execute_async()
    with cancelled_at_the_end(job):
        wait_until(lambda: job.get_job_status().result() is JobStatus.RUNNING, "the job runs")
    with pytest.raises(JobError, match="the job was cancelled"):
        job.get_job_execution_result().result()
    assert job.get_job_status().result() is JobStatus.CANCELED
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([0]).map(lambda n: 1 // n).print()
    failing = env.execute_async()
    with pytest.raises(JobError, match="ZeroDivisionError"):
        failing.get_job_execution_result().result()
    with pytest.raises(GraphError, match="nothing was added"):
        env.execute_async()


@pytest.mark.parametrize("kept", [True, False])
def test_a_cancelled_job_leaves_its_checkpoints_if_they_are_retained(tmp_path: Path, kept: bool):
    store, kinds = Store(tmp_path / "job"), ExternalizedCheckpointRetention
    retention = kinds.RETAIN_ON_CANCELLATION if kept else kinds.DELETE_ON_CANCELLATION
    env = endless(tmp_path)
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    job = env.execute_async()
    with cancelled_at_the_end(job):
        savepoint = Path(job.trigger_savepoint().result())
        wait_until(lambda: SnapshotKind.CHECKPOINT in kinds_in(store), "there is a checkpoint")
    assert (savepoint / "manifest").exists()
    assert set(kinds_in(store)) == {SnapshotKind.SAVEPOINT, *([SnapshotKind.CHECKPOINT] * kept)}


def test_a_job_that_is_stopped_leaves_its_last_snapshot(tmp_path: Path):
    env = endless(tmp_path)
    env.get_checkpoint_config().set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    )
    job = env.execute_async()
    with cancelled_at_the_end(job):
        assert (Path(job.stop_with_savepoint().result()) / "manifest").exists()
        result = job.get_job_execution_result().result()
    assert result.stopped and result.get_job_id() == job.get_job_id()
    assert SnapshotKind.FINAL in kinds_in(Store(tmp_path / "job"))


def kinds_in(store: Store) -> list[SnapshotKind]:
    """Return the kinds of the snapshots in a folder, of which a running job may remove some."""
    found = []
    for number in store.published():
        with suppress(StoreError):
            found.append(store.load(number).kind)
    return found
