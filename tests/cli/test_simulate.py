"""`penstock simulate` on job files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from tests.processes.harness import PATIENCE

ROOT = str(Path(__file__).resolve().parents[2])
ENVIRONMENT = {**os.environ, "PYTHONPATH": ROOT}

JOB = """
import sys
from penstock import FileSink, KeyedProcessFunction, StreamExecutionEnvironment


class Count(KeyedProcessFunction):
    def __init__(self):
        self.seen = {}

    def process_element(self, value, ctx):
        self.seen[value] = self.seen.get(value, 0) + 1
        yield value, self.seen[value]


env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
lines = env.from_collection([f"ant bee {number % 7}" for number in range(100)])
words = lines.flat_map(str.split)
if sys.argv[1] == "right":
    words.map(str.upper).sink_to(FileSink("out"))
elif sys.argv[1] == "set":
    words.map(lambda word: "".join(set(word + "uvwxyz"))).sink_to(FileSink("out"))
else:
    words.key_by(lambda word: word).process(Count()).sink_to(FileSink("out"))
env.execute("job")
print("never reached")
"""


@pytest.fixture
def job(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path / "job.py"


def run(*args: str) -> Result:
    # Processes would be forked from one with threads.
    return CliRunner().invoke(main, ["simulate", "job.py", "--jobs", "1", *args])


def test_a_correct_job_is_right(job: Path):
    command = [
        sys.executable,
        "-m",
        "penstock",
        "simulate",
        "job.py",
        "--seeds",
        "6",
        "--jobs",
        "2",
    ]
    done = subprocess.run(
        [*command, "--", "right"], capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE
    )
    assert done.returncode == 0 and "all right: 6 seeds" in done.stdout, done.stdout + done.stderr
    assert "never reached" not in done.stdout and not (job.parent / "out").exists()


def test_a_failing_seed_can_be_replayed(job: Path):
    done = run("--seeds", "8", "--faults", "kill", "--", "wrong")
    assert done.exit_code == 1 and "attribute 'seen'" in done.output
    (command,) = (line for line in done.output.splitlines() if line.startswith("replay with: "))
    words = command.removeprefix("replay with: penstock simulate job.py ").split()
    again, once_more = run(*words), run(*words)
    assert again.exit_code == 1 and again.output == once_more.output
    assert "lost: (" in again.output or "too many: (" in again.output
    assert "ms  kill " in again.output


def test_a_timeline_shows_processes_and_kills(job: Path):
    done = run("--seed", "0", "--faults", "kill", "--timeline", "run.html", "--", "right")
    assert done.exit_code == 0, done.output
    page = Path("run.html").read_text()
    assert page.count('class="life"') >= 3 and 'class="killed"' in page
    assert 'class="snapshot"' in page and "worker 0" in page and "kill " in page


def test_the_order_of_a_set_is_found(job: Path):
    done = run("--seeds", "3", "--", "set")
    assert done.exit_code == 1 and "the order of a set" in done.output


def test_the_output_of_an_undisturbed_run_is_written(job: Path):
    assert run("--output", "lines.txt", "--", "right").exit_code == 0
    lines = Path("lines.txt").read_text().splitlines()
    assert len(lines) == 300 and lines == sorted(lines) and lines[-1].endswith("'BEE'")


def test_a_job_that_fails_writes_no_output(job: Path):
    job.write_text(JOB.replace("words.map(str.upper)", "words.map(lambda word: 1 // 0)"))
    done = run("--output", "lines.txt", "--", "right")
    assert done.exit_code == 1 and "ZeroDivisionError" in done.output
    assert not Path("lines.txt").exists()


def test_a_seed_that_is_right_says_what_happened(job: Path):
    done = run("--seed", "3", "--", "right")
    assert done.exit_code == 0 and "seed 3: all right" in done.output and "drawn:" in done.output


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--trace",), 2, "--trace goes together with --seed"),
        (("--timeline", "run.html"), 2, "--timeline goes together with --seed"),
        (("--faults", "kill,flood", "--", "right"), 1, "no fault 'flood'"),
    ],
)
def test_wrong_options_are_refused(job: Path, args: tuple[str, ...], code: int, said: str):
    done = run(*args)
    assert done.exit_code == code and said in done.output
