"""The programs of the page on debugging do what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "debugging.md").read_text(encoding="utf-8")
BREAKPOINT, LOGGING, CONFTEST, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(folder: Path, *arguments: str, answers: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=answers,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_breakpoint_stops_in_the_function(tmp_path: Path):
    (tmp_path / "job.py").write_text(BREAKPOINT)
    output = run(tmp_path, "job.py", answers="p loud\nc\nc\n")
    assert "-> return loud" in output and "'ONE'" in output and "TWO" in output


def test_its_function_logs(tmp_path: Path):
    (tmp_path / "job.py").write_text(LOGGING)
    (line,) = re.findall(r"\d+ (INFO  words .*)", PAGE)
    assert line in run(tmp_path, "job.py")


def test_its_test_passes(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_job.py").write_text(TEST)
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
