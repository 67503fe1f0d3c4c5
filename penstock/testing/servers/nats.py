"""Run nats-server with JetStream for tests."""

from __future__ import annotations

import socket
from typing import ClassVar

from penstock.testing.servers.server import Server


class NatsServer(Server):
    """Runs nats-server with JetStream, whose streams are in files.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, NatsServer(folder) as server:
        ...     server.url.startswith("nats://127.0.0.1:")
        True
    """

    program = "nats-server"
    package = "apt-get install nats-server"
    #: The options of the server besides its port and folder.
    options: ClassVar[list[str]] = []

    @property
    def url(self) -> str:
        """The address as clients take it."""
        return f"nats://{self.address}"

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        place = ["--port", str(self.port), "--addr", self.host]
        store = ["--jetstream", "--store_dir", str(self.folder / "store")]
        return [self.executable() or self.program, *place, *store, *self.options]

    def is_ready(self) -> bool:
        """Return whether the server has restored its streams and answers."""
        # The server listens only when JetStream is there.
        with (
            socket.create_connection((self.host, self.port), timeout=5) as connection,
            connection.makefile("rb") as answer,
        ):
            return answer.readline().startswith(b"INFO ")


class NatsServerWithPassword(NatsServer):
    """Runs a NatsServer that asks for the user "user" and the password "secret"."""

    options: ClassVar[list[str]] = ["--user", "user", "--pass", "secret"]
