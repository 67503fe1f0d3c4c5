"""The example with NATS prints what it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.testing.servers.nats import NatsServer
from tests.processes.harness import PATIENCE

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "connectors" / "nats_orders.py"


def test_orders_are_added_up_and_the_totals_are_written(nats_server: NatsServer):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), nats_server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    expected = ['totals.tea ["tea",2]', 'totals.salt ["salt",1]', 'totals.tea ["tea",5]']
    assert done.stdout.splitlines() == expected, done.stderr
