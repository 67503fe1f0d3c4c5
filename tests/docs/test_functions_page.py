"""The programs of the pages about functions and state print what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "guides"
PROGRAM = re.compile(
    r"```python\n(from (?:penstock|dataclasses).*?)```\n\n```text\n(.*?)```", re.DOTALL
)
PROGRAMS = [
    pytest.param(program, output, id=f"{page}-{number}")
    for page in (
        "functions.md",
        "state.md",
        "operators.md",
        "batch.md",
        "columns.md",
        "metrics.md",
        "change-a-job.md",
    )
    if (DOCS / page).exists()
    for number, (program, output) in enumerate(PROGRAM.findall((DOCS / page).read_text()), 1)
]


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_a_program_of_a_page_prints_what_the_page_says(
    program: str, output: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.stdout == output, done.stderr


def test_the_pages_have_programs() -> None:
    assert len(PROGRAMS) >= 3
