"""The programs of the page on loops print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "cycles.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(from penstock.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_a_program_prints_what_the_page_says(number: int, tmp_path: Path):
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
    assert done.stdout == expected
