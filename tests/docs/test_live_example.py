"""`examples/live_top.py`: it asks a window for its best records before the window fires."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "live_top.py"


@pytest.mark.slow
def test_the_example_shows_what_its_windows_have_so_far():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    shown = [re.fullmatch(r"(\w+): (.*) \((live|snapshot \d+, [\d.]+ s old)\)", x) for x in lines]
    assert all(shown)
    assert [one[1] for one in shown if one] == ["books", "music", "toys", "books"] * 2
    for one in shown:
        assert one is not None
        amounts = [float(bid.partition(" by ")[0]) for bid in one[2].split(", ")]
        assert len(amounts) == 3 and amounts == sorted(amounts, reverse=True)
    # The bids rise, so the second round has higher ones.
    assert lines[0] != lines[4]
