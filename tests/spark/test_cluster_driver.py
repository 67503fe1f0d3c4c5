"""The driver's side of jobs on Spark: its JVM dies; the command line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.spark.active_session import spark_session
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.spark import SESSION_SETTINGS, SparkCluster
from tests.processes.harness import (
    PATIENCE,
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
    wait_until,
)
from tests.processes.parts import let_go

SETTINGS = {**SESSION_SETTINGS, "spark.log.level": "OFF"}

JOB = """
import sys
from pathlib import Path
from penstock import FileSink, JsonLines, StreamExecutionEnvironment
from pyspark.sql import SparkSession

# So slow that it does not end before it is killed, and as fast as it can be afterwards.
rate = 1e6 if Path("hurry").exists() else 40
if len(sys.argv) > 1:  # the session was made before this file was run
    print("rows", SparkSession.builder.getOrCreate().range(7).count())
env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
counts = env.from_generator(lambda i: i, 8000, rate).key_by(lambda i: i % 3).count()
counts.sink_to(FileSink(Path.cwd() / "out", JsonLines()))
env.execute("counts")
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Unable to cleanly shutdown Spark JVM process:RuntimeWarning")
def test_a_dead_jvm_is_replaced_and_nothing_is_lost_or_doubled(tmp_path: Path):
    settings = Settings(tmp_path, count=30_000, parts=2)
    first = spark_session(SETTINGS)
    cluster = SparkCluster(first)
    snapshots = 0

    def progress(event: dict[str, Any]) -> None:
        nonlocal snapshots
        snapshots += event["event"] == "snapshot"
        if event["event"] == "snapshot" and snapshots == 3:
            jvm = first.sparkContext._gateway.proc
            os.kill(jvm.pid, signal.SIGKILL)
            jvm.wait()
            let_go(settings.gate)

    try:
        with run_options(RunOptions(progress=progress)), cluster:
            result = counting_job(settings).execute("counting")
        assert 1 <= len(result.restarts) <= 2, result.restarts
        found = lost_and_doubled(committed(settings.output), expected_words(settings))
        assert found == (0, 0)
        assert cluster.session is not first
        assert cluster.session.range(3).count() == 3
        conf = cluster.session.sparkContext.getConf()
        assert conf.get("spark.python.worker.reuse") == "false"
    finally:
        cluster.session.stop()


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_killed_driver_takes_its_workers_with_it_and_the_job_is_resumed(tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB)
    options = ["--master", "local[2]", "--slots", "2", "--checkpoint-dir", "state"]
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "penstock", "run", "job.py", *options]
        driver = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        said = wait_until(
            lambda: re.search("workers: pids (.*)\n", (tmp_path / "log").read_text()), "started"
        )
        wait_until(lambda: list(tmp_path.glob("state/checkpoints/*/manifest")), "snapshots")
    finally:
        driver.kill()
        driver.wait()
    for pid in said[1].split(", "):
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{pid} has ended")
    (tmp_path / "hurry").touch()
    done = penstock(
        tmp_path, "run", "job.py", *options, "--report", "r.json", "--resume", "--", "x"
    )
    assert done.returncode == 0, done.stderr
    assert "rows 7\n" in done.stdout
    assert len(json.loads((tmp_path / "r.json").read_text())["pids"]["workers"]) == 2
    counts = sorted(committed(tmp_path / "out"))
    assert counts == sorted([key, n + 1] for key in range(3) for n in range((8000 - key + 2) // 3))


@pytest.mark.long
def test_ctrl_c_stops_a_job_in_order_and_tells_how_to_resume(tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB.replace("8000", "10**9"))
    command = [sys.executable, "-m", "penstock", "run", "job.py", "--master", "local[1]"]
    command += ["--conf", "spark.log.level=OFF", "--checkpoint-dir", "state"]
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        found = lambda: list(tmp_path.glob("state/checkpoints/*/manifest"))  # noqa: E731
        wait_until(found, "snapshots")
        driver.send_signal(signal.SIGINT)
        assert driver.wait(PATIENCE) == 130
    finally:
        driver.kill()
    said = (tmp_path / "log").read_text()
    resume = "--master 'local[1]' --conf spark.log.level=OFF --resume"
    assert f"stopped; resume with: penstock run job.py --checkpoint-dir state {resume}" in said


def test_the_command_line_refuses_what_cannot_be(tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB)
    done = penstock(tmp_path, "run", "job.py", "--slots", "2")
    assert done.returncode == 2 and "--slots goes together with --master" in done.stderr
    done = penstock(tmp_path, "run", "job.py", "--master", "local[1]", "--conf", "nothing")
    assert done.returncode == 2 and "is not KEY=VALUE" in done.stderr
    setting = "spark.dynamicAllocation.enabled=true"
    done = penstock(tmp_path, "run", "job.py", "--master", "local[1]", "--conf", setting)
    assert done.returncode == 1
    assert "Error: spark.dynamicAllocation.enabled is on" in done.stderr
    assert not (tmp_path / "out").exists()
