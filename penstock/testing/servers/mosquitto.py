"""Start the MQTT broker Mosquitto."""

from __future__ import annotations

from penstock.testing.servers.server import Server, accepts_connections


class MosquittoServer(Server):
    """Runs Mosquitto, which keeps sessions in its folder when it is stopped.

    Mosquitto saves its data every second and when it ends. So a `kill` loses messages that came
    after the last save, although they were acknowledged.

    Attributes:
        settings: lines of its configuration file, besides those for the port and the folder.
    """

    program = "mosquitto"
    package = "apt-get install mosquitto"

    settings: tuple[str, ...] = (
        "allow_anonymous true",
        "max_inflight_messages 0",
        "max_queued_messages 0",
    )

    def prepare(self) -> None:
        """Write the configuration file."""
        lines = [
            f"listener {self.port} {self.host}",
            "user root",  # without root, the line has no effect
            "persistence true",
            f"persistence_location {self.folder}/",
            "autosave_interval 1",
            *self.settings,
        ]
        (self.folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        return [self.executable() or self.program, "-c", str(self.folder / "mosquitto.conf")]

    def is_ready(self) -> bool:
        """Return whether the broker accepts connections."""
        return accepts_connections(self.host, self.port)
