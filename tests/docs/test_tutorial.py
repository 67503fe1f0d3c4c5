"""The programs of the tutorial print what it says, and its last job survives the kills."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "learn" / "tutorial.md").read_text(encoding="utf-8")
#: The program of each file that a reader saves.
FILES = dict(re.findall(r"as `(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))
#: What each of them prints.
OUTPUTS = dict(re.findall(r"`python (\w+\.py)`[^`]*:\n\n```text\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [command.split() for command in re.findall(r"^(penstock run .*)$", PAGE, re.MULTILINE)]
RATE = "records_per_second=5_000"


def _save(folder: Path, rate: str = RATE) -> None:
    for name, program in FILES.items():
        (folder / name).write_text(program.replace(RATE, rate))


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def _run(folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=_environment(**variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name != "check.py"])
def test_a_program_prints_what_the_page_says(name: str, tmp_path: Path):
    _save(tmp_path)
    assert _run(tmp_path, name, PENSTOCK_IN_PROCESS="true") == OUTPUTS[name]


def test_its_job_counts_each_click_once_though_it_is_killed(tmp_path: Path):
    # Slowly until the job was killed, however slow the machine, and then fast.
    assert RATE in FILES["report.py"]
    _save(tmp_path, "records_per_second=1_000")
    (_, *first), (_, *again) = COMMANDS
    with (tmp_path / "told").open("w") as told:
        job = subprocess.Popen(
            [sys.executable, "-m", "penstock", *first],
            cwd=tmp_path,
            env=_environment(),
            stdout=told,
            stderr=told,
        )

    def lines(word: str) -> list[str]:
        return [line for line in (tmp_path / "told").read_text().split("\n") if word in line]

    wait_until(lambda: lines("snapshot"), "a snapshot")
    os.kill(_pids(lines("workers: pids")[0])[0], signal.SIGKILL)
    wait_until(lambda: len(lines("workers: pids")) == 2, "a restart")
    snapshots = len(lines("snapshot"))
    wait_until(lambda: len(lines("snapshot")) > snapshots, "another snapshot")
    os.kill(_pids(lines("JobManager pid")[0])[0], signal.SIGKILL)
    assert job.wait(timeout=PATIENCE) != 0

    _save(tmp_path, "records_per_second=10**6")
    _run(tmp_path, "-m", "penstock", *again)
    assert _run(tmp_path, "check.py") == OUTPUTS["check.py"]
    assert list((tmp_path / "payments").glob("part-*"))


def _pids(line: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\d+", line)]
