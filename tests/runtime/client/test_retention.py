"""Whether checkpoints are kept when a job ends. Cancelled jobs: `tests/processes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import (
    ExternalizedCheckpointRetention,
    JobError,
    StreamExecutionEnvironment,
)
from penstock.snapshot.metadata.manifest import SnapshotKind
from penstock.snapshot.storage.store import Store

KINDS = ExternalizedCheckpointRetention
EACH = [None, *KINDS]


def environment(
    folder: Path, retention: ExternalizedCheckpointRetention | None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    env.enable_checkpointing(10).get_checkpoint_config().set_checkpoint_storage_dir(folder)
    if retention is not None:
        env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    return env


def kinds_in(folder: Path) -> list[SnapshotKind]:
    store = Store(folder)
    return [store.load(number).kind for number in store.published()]


@pytest.mark.parametrize("retention", EACH)
def test_a_job_that_has_finished(tmp_path: Path, retention: ExternalizedCheckpointRetention):
    env = environment(tmp_path / "job", retention)
    env.from_collection([1, 2, 3]).print()
    env.execute()
    kept = retention in (None, KINDS.RETAIN_ON_CANCELLATION)
    assert bool(kinds_in(tmp_path / "job")) == kept


@pytest.mark.parametrize("retention", EACH)
def test_a_job_that_has_failed(tmp_path: Path, retention: ExternalizedCheckpointRetention):
    folder, env = tmp_path / "job", environment(tmp_path / "job", retention)

    def fail(number: int) -> int:
        if SnapshotKind.CHECKPOINT in kinds_in(folder):
            raise ValueError("enough")
        return number

    env.from_generator(lambda number: number, None, 500).map(fail).print()
    with pytest.raises(JobError, match="enough"):
        env.execute()
    kept = retention is not KINDS.NO_EXTERNALIZED_CHECKPOINTS
    assert bool(kinds_in(folder)) == kept
