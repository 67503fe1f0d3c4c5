"""The tests on the page about tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_all_tests_of_the_page_pass(tmp_path: Path):
    (conftest,) = (block for block in BLOCKS if block.startswith("pytest_plugins"))
    (tmp_path / "conftest.py").write_text(conftest)
    tests = [block for block in BLOCKS if "def test_" in block]
    assert len(tests) == len(BLOCKS) - 1
    for number, block in enumerate(tests):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    count = sum(block.count("def test_") for block in tests)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
