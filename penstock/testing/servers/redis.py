"""Run redis-server for tests: with a log of all writes, without persistence, or as a cluster."""

from __future__ import annotations

import socket
from typing import ClassVar

from penstock.testing.servers.server import Server, free_port


class RedisServer(Server):
    """Runs redis-server with an append-only file that is synced at each write.

    So a server that is killed and started again has all that it has confirmed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as server:
        ...     server.command_line("PING")
        'PONG'
    """

    program = "redis-server"
    package = "apt-get install redis-server"
    #: The options of the server besides its port and folder.
    options: ClassVar[list[str]] = ["--appendonly", "yes", "--appendfsync", "always"]

    @property
    def url(self) -> str:
        """The address as clients take it."""
        return f"redis://{self.address}/0"

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        place = ["--port", str(self.port), "--bind", self.host, "--dir", str(self.folder)]
        return [self.executable() or self.program, *place, "--save", "", *self.options]

    def is_ready(self) -> bool:
        """Return whether the server has loaded its data and answers."""
        return self.command_line("PING") == "PONG"

    def command_line(self, line: str) -> str:
        """Send one command, and return the first line of the answer without its mark.

        It needs no client library. Use one for anything else.
        """
        with socket.create_connection((self.host, self.port), timeout=5) as connection:
            connection.sendall(line.encode() + b"\r\n")
            with connection.makefile("rb") as answer:
                return answer.readline().decode().strip()[1:]


class EphemeralRedisServer(RedisServer):
    """Runs redis-server without persistence: it is empty after each start."""

    options: ClassVar[list[str]] = ["--appendonly", "no"]


class RedisClusterServer(RedisServer):
    """Runs a Redis Cluster that has one node, with all hash slots."""

    options: ClassVar[list[str]] = [*RedisServer.options, "--cluster-enabled", "yes"]

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        # By default, nodes talk to each other at a port that is 10,000 higher, and may not exist.
        return [*super().command(), "--cluster-port", str(free_port())]

    def is_ready(self) -> bool:
        """Return whether the node serves all slots; it is given them after its first start."""
        if not super().is_ready():
            return False
        if self.command_line("CLUSTER COUNTKEYSINSLOT 0").startswith("ERR"):
            return False
        self.command_line("CLUSTER ADDSLOTSRANGE 0 16383")  # an error if it has them already
        # A node without its slots answers CLUSTERDOWN.
        return not self.command_line("GET penstock").startswith("CLUSTERDOWN")
