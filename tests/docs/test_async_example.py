"""The example of asynchronous requests: a worker is killed, and each order is enriched once."""

import re
import subprocess
import sys
from pathlib import Path

from tests.processes.harness import PATIENCE

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "async_enrichment.py"


def test_the_example_loses_and_doubles_nothing_though_a_worker_is_killed():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--orders", "4000", "--capacity", "20"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, last = done.stdout.splitlines()
    assert re.match(r"async enrichment: 4,000 orders in [\d.]+ s · [\d,]+ requests/s · ", first)
    assert re.match(r"worker \d+ killed · restarts [1-9]", second)
    assert last == "lost 0 · doubled 0"
