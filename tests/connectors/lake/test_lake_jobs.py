"""Jobs with tables of a lake in real processes that are killed, and other writers beside them."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
import pyarrow as pa

from penstock import JobError
from penstock.testing.servers.s3 import S3Server
from tests.connectors.lake.lake_job import LakeSettings, lake_job, lost_and_doubled_rows
from tests.processes.harness import Killer, run, run_to_the_end
from tests.processes.parts import let_all_go


def killed(settings: LakeSettings, seed: int, kills: int, **options: Any) -> None:
    settings.create_tables()
    targets = options.pop("targets", ("worker", "jobmanager", "both"))
    killer = Killer(random.Random(seed), kills=kills, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, **{"job": lake_job, **options})
    assert len(killer.killed) >= kills, f"seed {seed}"
    assert lost_and_doubled_rows(settings) == (0, 0), f"seed {seed}"


@pytest.mark.connectors
@pytest.mark.parametrize("kind", ["delta", "iceberg", "store"])
def test_each_row_is_read_and_written_once_whoever_is_killed(
    s3_server: S3Server, tmp_path: Path, kind: str
):
    s3_server.create_bucket("lakejobs")
    url, options = f"s3://lakejobs/{random.getrandbits(60):x}", s3_server.options
    settings = LakeSettings(
        tmp_path, count=3000, interval_ms=300, parts=4, kind=kind, url=url, options=options
    )
    killed(settings, 7, 4)


@pytest.mark.connectors
def test_upserts_are_right_whoever_is_killed(tmp_path: Path):
    settings = LakeSettings(tmp_path, count=3000, interval_ms=300, parts=3, mode="upsert")
    killed(settings, 8, 3)


@pytest.mark.connectors
def test_a_job_rescaled_with_staged_output_publishes_it(tmp_path: Path):
    parallelisms = iter((3, 1, 2, 2, 2, 2))

    def job(settings: LakeSettings) -> Any:
        return lake_job(settings).set_parallelism(next(parallelisms))

    settings = LakeSettings(tmp_path, count=3000, interval_ms=300, parts=2)
    killed(settings, 9, 2, targets=("jobmanager",), job=job)


@pytest.mark.connectors
def test_another_writer_commits_between(tmp_path: Path):
    settings = LakeSettings(tmp_path, count=3000, interval_ms=100, parts=1)
    settings.create_tables()
    path = str(settings.place("output"))
    done = threading.Event()
    others = 0

    def write() -> None:
        nonlocal others
        while not done.is_set():
            rows = pa.table({"key": ["other"], "n": [others]})
            deltalake.write_deltalake(path, rows, mode="append")
            others += 1
            if others == 20:
                let_all_go(settings.gate)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        run(lake_job(settings))
    finally:
        done.set()
        writer.join()
    assert others >= 20
    rows = settings.read_output()
    assert sorted(n for word, n in rows if word == "other") == list(range(others))
    deltalake.DeltaTable(path).delete("key = 'other'")
    assert lost_and_doubled_rows(settings) == (0, 0)


def _copy_of_running(folder: Path, target: Path) -> None:
    """Copy the folder of a job that runs, again if a file of it has gone meanwhile."""
    while True:
        try:
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.tmp", "work"))
            return
        except shutil.Error:
            shutil.rmtree(target)


@pytest.mark.connectors
def test_a_copy_of_a_job_that_is_behind_is_refused(tmp_path: Path):
    settings = LakeSettings(tmp_path, count=600, interval_ms=100, parts=1)
    settings.create_tables()
    copied = tmp_path / "copy"
    snapshots = 0

    def progress(event: dict[str, Any]) -> None:
        nonlocal snapshots
        if event["event"] == "committed":
            snapshots += 1
            if snapshots == 1:
                _copy_of_running(settings.job, copied)
            if snapshots == 2:
                let_all_go(settings.gate)

    run(lake_job(settings), progress=progress)
    assert copied.exists() and lost_and_doubled_rows(settings) == (0, 0)
    env = lake_job(settings)
    env.get_checkpoint_config().set_checkpoint_storage_dir(copied)
    with pytest.raises(JobError, match="another run of this job is ahead"):
        run(env, resume="newest")
    assert lost_and_doubled_rows(settings) == (0, 0)


def test_the_example_keeps_totals():
    example = Path(__file__).parents[3] / "examples/connectors/lake.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ann 7\nbob 3\n"
