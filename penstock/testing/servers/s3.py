"""A server of the S3 protocol for tests: that of the package moto."""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from typing import Any, ClassVar

from penstock.testing.servers.server import Server, accepts_connections


class S3Server(Server):
    """Runs moto's server, which keeps its objects in memory.

    It checks conditional requests as S3 does, and accepts any credentials. A server that is killed
    and started again is empty; `pause` and `resume` keep its objects.
    """

    program: ClassVar[str] = "moto"
    package: ClassVar[str] = "pip install 'moto[server]'"

    @classmethod
    def executable(cls) -> str | None:
        """Return the interpreter that runs the server, or None if moto is not installed."""
        found = importlib.util.find_spec("moto") and importlib.util.find_spec("flask")
        return sys.executable if found else None

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        return [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]

    def is_ready(self) -> bool:
        """Return whether the server answers."""
        if not accepts_connections(self.host, self.port):
            return False
        with urllib.request.urlopen(f"http://{self.address}/", timeout=30):
            return True

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://{self.address}"

    @property
    def options(self) -> dict[str, Any]:
        """The options with which an `ObjectStore` reaches the server."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket, unless it exists."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass
