"""Say where the job service is, and connect to it: `ServiceAddress`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cli.service_connection import ServiceConnection


@dataclass(frozen=True)
class ServiceAddress:
    """Says where the job service is.

    Arguments:
        directory: the state folder of a service of this machine; None for the default folder.
        url: the URL of the HTTP API of a service; None for a service of this machine.
        token_file: the file with the token of the HTTP API; None for `$PENSTOCK_TOKEN`.
    """

    directory: Path | None = None
    url: str | None = None
    token_file: Path | None = None

    def connect(self) -> ServiceConnection:
        """Return a connection to the service.

        Raises:
            NoServiceError: if no service runs with the state folder.
            PenstockError: if the service does not accept the connection.
        """
        if self.url is None:
            from penstock.cli.service_connection import LocalConnection

            return LocalConnection(self.directory)
        from penstock.cli.http_connection import HttpConnection, read_token

        return HttpConnection(self.url, read_token(self.token_file))

    def words(self) -> tuple[str, ...]:
        """Return the address as words of a command line."""
        if self.url is not None:
            token = () if self.token_file is None else ("--token-file", str(self.token_file))
            return ("--service", self.url, *token)
        return () if self.directory is None else ("--dir", str(self.directory))
