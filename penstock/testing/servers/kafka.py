"""A Kafka broker for tests: noida-db, or any broker that is already running."""

from __future__ import annotations

import os
import signal
import uuid
from importlib.util import find_spec
from pathlib import Path

from penstock.testing.servers.server import Server, accepts_connections

#: The environment variable with the address `host:port` of a broker to use instead.
ADDRESS_VARIABLE = "PENSTOCK_KAFKA"


class KafkaServer(Server):
    """Runs noida-db as a Kafka broker of one node.

    noida-db is a program in a wheel of PyPI. It has transactions, fences old producers, and holds
    back readers of committed records. But it forgets open transactions and its last moments if it
    is killed, so that only `stop` and `start` are a restart without loss. It never ends a
    transaction because of `transaction.timeout.ms`. A reader of committed records that begins
    behind an aborted transaction misses the later ones of the same producer id.

    Topics that do not exist are not created by a client that asks for them.

    Examples:
        >>> with KafkaServer("broker") as server:  # doctest: +SKIP
        ...     topic = server.create_topic(partitions=3)
    """

    program = "noida-db"
    package = "pip install noida-db==0.2.3"
    stop_signal = signal.SIGINT

    @classmethod
    def executable(cls) -> str | None:
        """Return the path of the program in the package, or None if it is not installed."""
        # The script of the package starts the program as a child, which would survive a kill.
        spec = find_spec("noida_db")
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).with_name("noida-db")
        return str(path) if path.exists() else None

    def prepare(self) -> None:
        """Make the program executable, which installers of wheels may not do."""
        program = Path(self.executable() or "")
        if not os.access(program, os.X_OK):
            program.chmod(0o755)

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        program = self.executable()
        assert program is not None
        port, folder = str(self.port), str(self.folder / "noida")
        return [program, "start", "--only", "kafka", "--kafka-port", port, "--data-dir", folder]

    def is_ready(self) -> bool:
        """Return whether the broker accepts connections."""
        return accepts_connections(self.host, self.port)

    def create_topic(self, name: str | None = None, partitions: int = 1) -> str:
        """Create a topic, and return its name.

        Arguments:
            name: the name; None for one that no other topic has.
            partitions: the number of partitions.
        """
        from confluent_kafka.admin import AdminClient, NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        return name


class RunningKafka(KafkaServer):
    """Stands for a broker that is running already. It cannot be started or stopped here.

    Arguments:
        address: the host and the port, with a colon between them.
        folder: a folder, which stays empty.
    """

    def __init__(self, address: str, folder: str | os.PathLike[str]) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(folder, int(port))
        self.host = host
