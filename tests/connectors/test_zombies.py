"""Publishers to Redis and NATS that wake up behind a successor write nothing twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.testing.servers.nats import NatsServer
from penstock.testing.servers.redis import RedisServer

pytest.importorskip("redis")
pytest.importorskip("nats")
from tests.connectors.zombies import RECORDS, haunt, written

ZOMBIES = 12


@pytest.mark.connectors
def test_sleeping_publishers_to_redis_write_nothing_twice(
    tmp_path: Path, redis_server: RedisServer
):
    require_each_record_once("redis", redis_server.url, f"{tmp_path}:zombies")


@pytest.mark.connectors
def test_sleeping_publishers_to_nats_write_nothing_twice(tmp_path: Path, nats_server: NatsServer):
    require_each_record_once("nats", nats_server.url, f"ZOMBIES_{tmp_path.name}")


def require_each_record_once(kind: str, url: str, stream: str) -> None:
    slept, killed = haunt(kind, url, stream, ZOMBIES, random.Random(1))
    assert slept and killed
    assert written(kind, url, stream) == list(range(2 * ZOMBIES * RECORDS))
