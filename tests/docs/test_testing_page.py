"""The tests on the pages about tests and about simulation pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "guides" / name for name in ("testing.md", "simulation.md")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_all_tests_of_the_pages_pass(tmp_path: Path):
    (conftest,) = (block for block in BLOCKS if block.startswith("pytest_plugins"))
    (tmp_path / "conftest.py").write_text(conftest)
    tests = [block for block in BLOCKS if "def test_" in block]
    assert len(tests) == len(BLOCKS) - 1
    for number, block in enumerate(tests):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    # Otherwise these tests would share the servers of tests that run now, or of an earlier run.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    count = sum(block.count("def test_") for block in tests)
    # A test whose server is not installed is skipped.
    found = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", done.stdout)}
    assert done.returncode == 0, done.stdout + done.stderr
    assert found.get("passed", 0) + found.get("skipped", 0) == count, done.stdout
