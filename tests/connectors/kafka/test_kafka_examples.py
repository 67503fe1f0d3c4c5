"""The example program for Kafka runs as it is."""

import subprocess
import sys
from pathlib import Path

from penstock.testing.servers.kafka import KafkaServer

EXAMPLES = Path(__file__).parents[3] / "examples" / "connectors"


def test_the_orders_are_added_up(kafka_server: KafkaServer):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "kafka_orders.py"), kafka_server.address],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == ["salt 1", "tea 1", "tea 5"]
