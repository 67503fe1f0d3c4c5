"""Reach the job service of another machine by HTTP: `HttpConnection`."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from penstock.cli.service_connection import CONNECT_SECONDS, GONE, ServiceConnection
from penstock.dataflow.errors import PenstockError

if TYPE_CHECKING:
    from penstock.runtime.control.requests import Request

#: The variable of the environment with the token.
TOKEN_VARIABLE = "PENSTOCK_TOKEN"
#: The time in which the service sends at least an empty line, in seconds.
SILENCE_SECONDS = 60.0
#: The largest number of characters of an answer that is quoted in an error.
QUOTED = 300


def read_token(file: Path | None) -> str:
    """Return the token of the HTTP API, from a file or from the environment.

    Raises:
        PenstockError: if there is none.
    """
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    else:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise PenstockError(f"cannot read the token: {reason} [{file}]") from error
    if not token or not token.isascii() or not token.isprintable():
        where = f"${TOKEN_VARIABLE}" if file is None else str(file)
        raise PenstockError(
            f"{where} has no token: take that of the file http/token in the state folder of the "
            f"service, and give it by --token-file or by ${TOKEN_VARIABLE}"
        )
    return token


class HttpConnection(ServiceConnection):
    """Sends requests to the HTTP API of a job service.

    Certificates are verified. For an authority of your own, the variable `SSL_CERT_FILE` names the
    file of its certificate. Without TLS only this machine is reached, because others could read
    the token.

    Arguments:
        url: the URL of the server, such as `https://host:8081`.
        token: the token of the API.

    Raises:
        PenstockError: if the URL cannot be used.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        try:
            parts = urlsplit(self._url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            parts, self._host = urlsplit(""), ""
        self._path, self._tls = f"{parts.path}/v1", parts.scheme == "https"
        if parts.scheme not in ("http", "https") or not self._host or parts.query:
            raise PenstockError(f"{url!r} is no URL of a service: write https://HOST:PORT")
        if parts.username is not None:
            raise PenstockError("the URL of a service has no user: give the token by --token-file")
        if not self._tls and not _is_loopback(self._host):
            raise PenstockError(
                f"without TLS, others could read the token on its way to {self._host}: use https, "
                f"and start the service with --ui-cert and --ui-key"
            )

    def close(self) -> None:
        """Close the connection."""
        # A response that is not read to its end has the socket as well.
        for one in (self._response, self._connection):
            if one is not None:
                one.close()

    def answers(self, request: Request) -> Iterator[dict[str, Any]]:
        """Send a request to the service, and yield the answers until the last one.

        Raises `PenstockError` if the service refuses the request, or ends before.
        """
        from penstock.runtime.control.requests import (
            Events,
            ListJobs,
            Logs,
            Show,
            request_map,
        )

        text = json.dumps(request_map(request))
        if isinstance(request, ListJobs | Show | Logs | Events):
            # The token for reading suffices for this.
            response = self._send("GET", f"/requests?request={quote(text)}")
        else:
            response = self._send("POST", "/requests", text.encode(), "application/json")
        try:
            for line in response:
                if line.strip():
                    yield self._answer(line)
        except (OSError, http.client.HTTPException) as error:
            raise PenstockError(f"{GONE}: {error}") from error

    def query_state(
        self, id: str, operator: str, state: str, query: dict[str, str]
    ) -> dict[str, Any]:
        """Return entries of a state of a job.

        Arguments:
            id: the id of the job.
            operator: the uid of the operator.
            state: the name of the state.
            query: the parameters of the query.
        """
        path = "/".join(quote(part, safe="") for part in ("jobs", id, "state", operator, state))
        return self._decoded(self._send("GET", f"/{path}?{urlencode(query)}").read())

    def send_program(self, archive: bytes) -> str:
        """Send the files of a program, and return their folder on the machine of the service."""
        response = self._send("POST", "/programs", archive, "application/octet-stream")
        return str(self._decoded(response.read())["folder"])

    def _send(
        self, method: str, path: str, body: bytes | None = None, media_type: str = ""
    ) -> http.client.HTTPResponse:
        """Send a request, and return the response if its status is a success."""
        self.close()
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = media_type
        try:
            self._connection = connection = self._connect()
            with suppress(BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body may answer before it has read it.
                connection.request(method, self._path + path, body, headers)
            self._response = response = connection.getresponse()
            if response.status < 300:
                return response
            data = response.read()
            self.close()
        except ssl.SSLCertVerificationError as error:
            raise PenstockError(
                f"the certificate of {self._url} is not trusted: {error.verify_message}. For an "
                f"authority of your own, set SSL_CERT_FILE to its certificate"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise PenstockError(f"cannot reach the service at {self._url}: {error}") from error
        raise PenstockError(self._refusal(response.status, data))

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.connect()
        connection.sock.settimeout(SILENCE_SECONDS)
        return connection

    def _answer(self, line: bytes) -> dict[str, Any]:
        answer = self._decoded(line)
        if answer.get("event") == "refused":
            raise PenstockError(answer["reason"])
        if isinstance(answer.get("part"), str):
            answer["part"] = answer["part"].encode(errors="surrogateescape")
        return answer

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            text = data[:QUOTED].decode(errors="replace").strip()
            raise PenstockError(f"the service at {self._url} does not answer as it should: {text}")
        return answer

    def _refusal(self, status: int, data: bytes) -> str:
        try:
            return "; ".join(map(str, json.loads(data)["errors"]))
        except (ValueError, KeyError, TypeError):
            text = data[:QUOTED].decode(errors="replace").strip()
            return f"{self._url} answers with status {status}: {text}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
