"""The examples with Redis print what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.testing.servers.redis import RedisServer
from tests.processes.harness import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "connectors"


def test_orders_are_read_from_a_stream_and_priced(redis_server: RedisServer):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "redis_orders.py"), redis_server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "tea 8\nsalt 1\ntea 20\n", done.stderr
