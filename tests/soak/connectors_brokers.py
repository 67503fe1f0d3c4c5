"""Kill jobs that read from brokers and by HTTP, as part of `make soak-connectors`.

MQTT is at least once, so only lost messages are counted there, and doubles are shown.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import uuid
from pathlib import Path

from penstock.connectors.mqtt import MqttBroker
from penstock.connectors.rabbitmq import RabbitBroker
from penstock.testing.servers.mosquitto import MosquittoServer
from penstock.testing.servers.rabbitmq import RabbitServer
from tests.connectors.http.test_http_jobs import kill_job as http_kill_job
from tests.connectors.mqtt.test_mqtt_jobs import kill_job
from tests.connectors.rabbitmq.test_rabbitmq_jobs import kill_job as rabbitmq_kill_job

#: The number of kills of one job.
KILLS = 10


def mqtt(kills: int, rng: random.Random) -> int:
    """Kill jobs that read from MQTT; return the number of lost messages."""
    lost = doubled = done = 0
    with tempfile.TemporaryDirectory() as folder, MosquittoServer(Path(folder) / "mqtt") as server:
        broker = MqttBroker(server.host, server.port)
        while done < kills:
            name = f"soak{uuid.uuid4().hex}"
            wanted = min(KILLS, kills - done)
            seen, missing = kill_job(
                name, broker, Path(folder) / name, rng, wanted, shares=rng.choice([1, 2])
            )
            done += wanted
            lost += missing
            doubled += seen.total() - len(seen)
    print(f"mqtt: kills {done} · lost {lost} · came twice {doubled}, which is allowed", flush=True)
    return lost


def webhooks(kills: int, rng: random.Random) -> int:
    """Kill jobs with webhooks in and out; return the number of lost and doubled ones."""
    lost = doubled = done = 0
    with tempfile.TemporaryDirectory() as folder:
        while done < kills:
            wanted = min(KILLS, kills - done)
            sent, received = http_kill_job(Path(folder) / str(done), rng, wanted)
            done += wanted
            lost += (sent - received).total()
            doubled += (received - sent).total()
    print(f"webhooks: kills {done} · lost {lost} · doubled {doubled}", flush=True)
    return lost + doubled


def rabbitmq(kills: int, rng: random.Random) -> int:
    """Kill jobs between RabbitMQ streams; return the number of lost and doubled records."""
    lost = doubled = done = 0
    with tempfile.TemporaryDirectory() as folder, RabbitServer(Path(folder) / "mq") as server:
        broker = RabbitBroker(server.host, server.port, unreachable_seconds=60)
        while done < kills:
            wanted = min(KILLS, kills - done)
            missing, again = rabbitmq_kill_job(Path(folder) / str(done), broker, rng, wanted)
            done += wanted
            lost += missing
            doubled += again
    print(f"rabbitmq: kills {done} · lost {lost} · doubled {doubled}", flush=True)
    return lost + doubled


def main() -> int:
    """Run all; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    wrong = sum(soak(options.kills, rng) for soak in (mqtt, webhooks, rabbitmq))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
