"""Start real servers on this machine for tests: message brokers, databases, object stores.

Each server is a class with `start`, `stop`, `kill`, `pause` and `resume`. It listens on the
loopback interface only, and keeps its data in a folder of the test. `make servers` installs the
servers that Debian has, and the extra `dev` the others.

To start one without pytest, use it in a `with` block: `with RedisServer(folder) as server`.

`FakeSchemaRegistry` is no program: it runs in a thread of the test.

`penstock.testing.servers.fixtures` has a fixture of pytest for each. All tests of a run share one
server, also if pytest-xdist runs them in several processes.
"""

from __future__ import annotations

from penstock.testing.servers.kafka import KafkaServer, RunningKafka
from penstock.testing.servers.mosquitto import MosquittoServer
from penstock.testing.servers.nats import NatsServer, NatsServerWithPassword
from penstock.testing.servers.postgres import PostgresServer
from penstock.testing.servers.rabbitmq import RabbitServer
from penstock.testing.servers.redis import EphemeralRedisServer, RedisClusterServer, RedisServer
from penstock.testing.servers.s3 import S3Server
from penstock.testing.servers.schema_registry import FakeSchemaRegistry
from penstock.testing.servers.server import Server, ServerError

__all__ = [
    "EphemeralRedisServer",
    "FakeSchemaRegistry",
    "KafkaServer",
    "MosquittoServer",
    "NatsServer",
    "NatsServerWithPassword",
    "PostgresServer",
    "RabbitServer",
    "RedisClusterServer",
    "RedisServer",
    "RunningKafka",
    "S3Server",
    "Server",
    "ServerError",
]
