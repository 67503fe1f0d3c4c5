"""The programs of the pages about time, windows, joins, requests and slow tasks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("time.md", "windows.md", "joins.md", "async.md", "stragglers.md")
PAGES = [(ROOT / "docs" / "guides" / name).read_text(encoding="utf-8") for name in NAMES]
PROGRAMS = [
    program
    for page in PAGES
    for program in re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", page, re.DOTALL)
]


def test_each_program_of_the_pages_is_followed_by_its_output():
    assert len(PROGRAMS) == sum(page.count("```python") for page in PAGES)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_prints_what_the_page_says(tmp_path: Path, number: int):
    program, expected = PROGRAMS[number]
    (tmp_path / "job.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PENSTOCK_IN_PROCESS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line)
    assert lines == sorted(expected.splitlines())
