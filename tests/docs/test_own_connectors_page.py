"""The connectors on the page about own connectors pass the suite, as the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from penstock.testing.connectors import SinkConformance, SourceConformance
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own-connectors.md").read_text(encoding="utf-8")


def test_its_connectors_pass_its_tests(tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    names = [*dir(SourceConformance), *dir(SinkConformance) * 2]
    count = sum(name.startswith("test_") for name in names)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
