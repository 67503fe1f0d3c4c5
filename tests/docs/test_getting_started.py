"""The programs of the page for newcomers print what it says, and its job survives a kill."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes.harness import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "learn" / "getting-started.md").read_text(encoding="utf-8")
WORDS, COUNTS, JUMPS, CLICKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OUTPUTS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^(penstock run .*)$", PAGE, re.MULTILINE)
COUNTING = re.findall(r"^(cat .*)$", PAGE, re.MULTILINE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_its_programs_print_what_it_says(tmp_path: Path):
    for program, output in zip((WORDS, JUMPS, CLICKS), OUTPUTS, strict=True):
        (tmp_path / "job.py").write_text(program)
        done = _run(tmp_path, "job.py", PENSTOCK_IN_PROCESS="true")
        assert done.returncode == 0, done.stderr
        assert done.stdout == output


def test_its_job_survives_a_killed_worker_and_continues_after_it_was_stopped(tmp_path: Path):
    rate = "records_per_second=10_000"
    assert rate in COUNTS
    # Slowly until the job was killed and stopped, however slow the machine, and then fast.
    (tmp_path / "counts.py").write_text(COUNTS.replace(rate, "records_per_second=2_000"))
    first, again = (_arguments(command) for command in COMMANDS)
    with (tmp_path / "told").open("w") as told:
        job = subprocess.Popen(
            [sys.executable, *first], cwd=tmp_path, env=ENVIRONMENT, stdout=told, stderr=told
        )

    def lines(word: str) -> list[str]:
        return [line for line in (tmp_path / "told").read_text().split("\n") if word in line]

    wait_until(lambda: lines("snapshot"), "a snapshot")
    worker = re.findall(r"\d+", lines("workers: pids")[0])[0]
    os.kill(int(worker), signal.SIGKILL)
    wait_until(lambda: len(lines("workers: pids")) == 2, "a restart")
    job.send_signal(signal.SIGINT)
    assert job.wait(timeout=PATIENCE) == 130, lines("")

    (tmp_path / "counts.py").write_text(COUNTS.replace(rate, "records_per_second=10**6"))
    done = _run(tmp_path, *again)
    assert done.returncode == 0, done.stderr
    counted = [
        subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
        for command in COUNTING
    ]
    assert [int(text) for text in counted] == [50_000, 0]


def _arguments(command: str) -> list[str]:
    return ["-m", *shlex.split(command)]


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
