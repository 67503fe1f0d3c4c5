"""Provide pytest fixtures that start real servers.

To enable the fixtures, write `pytest_plugins = ["penstock.testing.servers.fixtures"]` in
`conftest.py`. A test whose server is not installed is skipped, with what to install.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from penstock.testing.servers.kafka import ADDRESS_VARIABLE, KafkaServer, RunningKafka
from penstock.testing.servers.mosquitto import MosquittoServer
from penstock.testing.servers.nats import NatsServer
from penstock.testing.servers.postgres import PostgresServer
from penstock.testing.servers.rabbitmq import RabbitServer
from penstock.testing.servers.redis import RedisServer
from penstock.testing.servers.s3 import S3Server
from penstock.testing.servers.server import Server
from penstock.testing.servers.shared import shared_server

S = TypeVar("S", bound=Server)


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[S]], S]:
    """Return a function that returns the running server of a class, one for the whole run."""
    base, in_worker = tmp_path_factory.getbasetemp(), "PYTEST_XDIST_WORKER" in os.environ

    def find(kind: type[S]) -> S:
        if (advice := kind.missing()) is not None:
            pytest.skip(advice)
        folder = (base.parent if in_worker else base) / "servers"
        return shared_server(kind, folder, os.getppid() if in_worker else os.getpid())

    return find


@pytest.fixture(scope="session")
def postgres_server(
    shared_servers: Callable[[type[PostgresServer]], PostgresServer],
) -> PostgresServer:
    """Return a running PostgreSQL server; `create_database` gives a test its own database."""
    pytest.importorskip("psycopg")
    return shared_servers(PostgresServer)


@pytest.fixture(scope="session")
def kafka_server(
    shared_servers: Callable[[type[KafkaServer]], KafkaServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> KafkaServer:
    """Return a running Kafka broker, which `PENSTOCK_KAFKA=host:port` replaces by another one."""
    pytest.importorskip("confluent_kafka")
    if address := os.environ.get(ADDRESS_VARIABLE):
        return RunningKafka(address, tmp_path_factory.mktemp("kafka"))
    return shared_servers(KafkaServer)


@pytest.fixture(scope="session")
def redis_server(shared_servers: Callable[[type[RedisServer]], RedisServer]) -> RedisServer:
    """Return a running server of Redis. Tests use different keys."""
    pytest.importorskip("redis")
    return shared_servers(RedisServer)


@pytest.fixture(scope="session")
def mosquitto_server(
    shared_servers: Callable[[type[MosquittoServer]], MosquittoServer],
) -> MosquittoServer:
    """Return the running MQTT broker of this run."""
    pytest.importorskip("paho.mqtt")
    return shared_servers(MosquittoServer)


@pytest.fixture(scope="session")
def s3_server(shared_servers: Callable[[type[S3Server]], S3Server]) -> S3Server:
    """Return a running server of the S3 protocol; give each test a bucket of its own."""
    pytest.importorskip("obstore")
    return shared_servers(S3Server)


@pytest.fixture(scope="session")
def nats_server(shared_servers: Callable[[type[NatsServer]], NatsServer]) -> NatsServer:
    """Return a running server of NATS with JetStream. Tests use different streams."""
    pytest.importorskip("nats")
    return shared_servers(NatsServer)


@pytest.fixture(scope="session")
def rabbitmq_server(
    shared_servers: Callable[[type[RabbitServer]], RabbitServer],
) -> RabbitServer:
    """Return the running RabbitMQ broker with streams of this run."""
    pytest.importorskip("rstream")
    return shared_servers(RabbitServer)
