"""Start RabbitMQ with its stream plugin."""

from __future__ import annotations

import os
import shlex
import time
from typing import ClassVar

from penstock.testing.servers.server import (
    START_SECONDS,
    Server,
    accepts_connections,
    free_port,
)


class RabbitServer(Server):
    """Runs RabbitMQ with the stream plugin. `port` is that of the stream protocol.

    Each server is a node of its own, with its own folder, and with its own name server of Erlang
    (`epmd`), which ends with it. The user is `guest`, with the password `guest`.
    """

    program = "rabbitmq-server"
    package = "apt-get install rabbitmq-server"

    #: Debian's program of this name changes the user and the folders, so that it can run once only.
    _script: ClassVar[str] = "/usr/lib/rabbitmq/bin/rabbitmq-server"

    def __init__(self, folder: str | os.PathLike[str], port: int | None = None) -> None:
        super().__init__(folder, port)
        self._ports = [free_port() for _ in range(3)]

    def prepare(self) -> None:
        """Write the configuration."""
        amqp, _, _ = self._ports
        lines = [
            f"listeners.tcp.1 = {self.host}:{amqp}",
            f"stream.listeners.tcp.1 = {self.host}:{self.port}",
            f"stream.advertised_host = {self.host}",
            f"stream.advertised_port = {self.port}",
            "disk_free_limit.absolute = 1MB",
            "log.console = true",
            "log.console.level = warning",
            "log.file = false",
        ]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (self.folder / "home").mkdir(exist_ok=True)

    def command(self) -> list[str]:
        """Return a shell that runs the name server beside the broker."""
        _, distribution, names = self._ports
        folder = self.folder.absolute()
        settings = {
            "HOME": folder / "home",  # the secret of the node
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": f"rabbit{self.port}@localhost",
            "RABBITMQ_DIST_PORT": distribution,
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-kernel inet_dist_use_interface {127,0,0,1}"),
        }
        exported = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items())
        # In the background it would be a daemon, which outlives the broker.
        beside = f"epmd -port {names} -address {self.host} & "
        return ["sh", "-c", f"export {exported}; {beside} exec {self._script}"]

    def stop(self) -> None:
        """End the broker in order."""
        super().stop()
        self._wait_for_end()

    def kill(self) -> None:
        """Kill the broker and its name server."""
        super().kill()
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        # The process that was waited for is a script, which the broker may outlive for a moment.
        deadline = time.monotonic() + START_SECONDS
        while accepts_connections(self.host, self.port) and time.monotonic() < deadline:
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Return whether the broker accepts connections."""
        return accepts_connections(self.host, self.port)
