"""The programs on the page about snapshots as data print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "snapshots.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r'```python title="(\S+)"\n(.*?)```', PAGE, re.DOTALL))
OUTPUTS = dict(re.findall(r'```output title="(\S+)"\n(.*?)```', PAGE, re.DOTALL))


@pytest.mark.slow
def test_the_programs_print_what_the_page_says(tmp_path: Path):
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    assert list(PROGRAMS) == ["orders.py", *OUTPUTS]
    run(tmp_path, "orders.py")
    for name, expected in OUTPUTS.items():
        assert run(tmp_path, name) == expected, name
    # The job goes on from what was written.
    arguments = ["-m", "penstock", "run", "fork.py", "--resume", "bootstrap", "--fork"]
    (tmp_path / "fork.py").write_text(PROGRAMS["orders.py"].replace('"job"', '"fork"'))
    run(tmp_path, *arguments)
    (tmp_path / "forked.py").write_text(PROGRAMS["read.py"].replace('"job"', '"fork"'))
    assert run(tmp_path, "forked.py").count("ada") == OUTPUTS["read.py"].count("ada")
    commands = re.findall(r"^\$ penstock (snapshots (?:query|sql|export|verify) .*)$", PAGE, re.M)
    assert len(commands) == 5
    for command in commands:
        shell = f"{sys.executable} -m penstock {command}"
        done = subprocess.run(
            shell,
            shell=True,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
