"""The connectors on the page about own connectors pass the suite, as the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock import Split
from penstock.testing.connectors import SinkConformance, SourceConformance
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "own-connectors.md").read_text(encoding="utf-8")


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
    names = [*dir(SourceConformance), *dir(SinkConformance) * 3]
    count = sum(name.startswith("test_") for name in names)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr


def test_the_logs_of_the_page_are_followed_line_by_line(tmp_path: Path):
    block = next(b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Logs(" in b)
    names: dict[str, Any] = {}
    exec(block, names)  # the code of our own page
    log = tmp_path / "a.log"
    log.write_text("line 1\nline 2\nli")
    source = names["Logs"](tmp_path)
    assert source.splits() == ["a.log"]
    poller = source.create_poller(Split("a.log"))
    poller.seek(None)
    assert poller.poll(1) == ["line 1"]
    assert poller.poll(10) == ["line 2"]
    assert poller.poll(10) == []
    position = poller.position()
    with log.open("a") as file:
        file.write("ne 3")
    assert poller.poll(10) == []
    with log.open("a") as file:
        file.write(" xx\nline 4\n")
    again = source.create_poller(Split("a.log"))
    again.seek(position)
    for one in (poller, again):
        assert one.poll(10) == ["line 3 xx", "line 4"]
        assert one.poll(10) == []
    log.unlink()
    assert poller.poll(10) is None
    poller.close()
    again.close()
