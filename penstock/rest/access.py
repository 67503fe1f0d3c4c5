"""Decide who may use the HTTP API: tokens, and the headers Host and Origin.

To submit or to stop a job is to run code, so every request needs a token. A web page of another
origin cannot know the token. Should it get hold of one, the checks of Host and Origin refuse it
still.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import re
import secrets
import socket
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.rest.operations import RefusedRequest
from penstock.runtime.system.private_files import open_private, read_private

#: The paths below which the state of a job is.
_STATE = re.compile(r"^/v1/jobs/[^/]*/state(/|$)")
#: Methods that change nothing, for which a read-only token suffices.
_READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Tokens:
    """The two tokens of the HTTP API.

    Arguments:
        full: the token with which everything is allowed.
        read_only: the token with which jobs can only be looked at.
    """

    full: str
    read_only: str

    @classmethod
    def load(cls, folder: Path, read_only: Path | None = None) -> Tokens:
        """Return the tokens in a folder; create those that do not exist.

        Only the owner of the folder can read them.

        Arguments:
            folder: the folder, which has the files `token` and `read-token`.
            read_only: another file for the read-only token, in a folder that exists.

        Raises:
            StoreError: if the folder cannot be used.
        """
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                raise OSError(errno.EPERM, "not a folder of this user", os.fspath(folder))
            folder.chmod(0o700)
            return cls(_token(folder / "token"), _token(read_only or folder / "read-token"))
        except OSError as error:
            reason, place = error.strerror or str(error), error.filename or folder
            raise StoreError(f"cannot keep tokens of the HTTP API: {reason}", place) from error


def _token(path: Path) -> str:
    """Return the token in a file; create the file if it does not exist."""
    if not path.exists():
        # Of two programs that start at once, the second takes the token of the first.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32))
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
    token = read_private(path).decode(errors="replace").strip()
    if len(token) < 20:
        raise OSError(errno.EINVAL, "not a token; remove the file", os.fspath(path))
    return token


@dataclass(frozen=True)
class ApiAccess:
    """Checks requests before anything else of them is read.

    Arguments:
        tokens: the tokens that are accepted.
        names: names of hosts that a request may name, beside the name of this machine, localhost
            and IP addresses. With another name, a page of another site could reach the server
            (DNS rebinding).
        shows_state: whether the token that is only for reading may query the state of jobs.
    """

    tokens: Tokens
    names: Collection[str] = ()
    shows_state: bool = True

    def check_origin(self, scheme: str, headers: dict[str, str]) -> None:
        """Refuse a request that comes from a page of another origin, or names another host.

        Arguments:
            scheme: "http" or "https".
            headers: the headers, with names in lower case.

        Raises:
            RefusedRequest: with status 403.
        """
        host = headers.get("host", "")
        if not self._knows(host):
            raise RefusedRequest(403, f"the host {host[:100]!r} is not one of this server")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
            raise RefusedRequest(403, f"pages of the origin {origin[:100]!r} may not use this API")

    def check_token(self, method: str, headers: dict[str, str], path: str = "") -> bool:
        """Return whether the token of a request allows orders; refuse one that is not allowed.

        Arguments:
            method: the method of the request.
            headers: the headers, with names in lower case.
            path: the path of the request.

        Raises:
            RefusedRequest: with status 401 for a missing or wrong token, and 403 for an order with
                a token that is only for reading.
        """
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip().encode()
        if kind.lower() != "bearer" or not given:
            raise RefusedRequest(
                401, "the request has no token: send the header `Authorization: Bearer TOKEN`"
            )
        if hmac.compare_digest(given, self.tokens.full.encode()):
            return True
        if not hmac.compare_digest(given, self.tokens.read_only.encode()):
            raise RefusedRequest(401, "the token of the request is wrong")
        if method not in _READING:
            raise RefusedRequest(403, "the token of the request is only for reading")
        if not self.shows_state and _STATE.search(path):
            raise RefusedRequest(
                403, "the token of the request may not read the state of jobs (--ui-private-state)"
            )
        return False

    def _knows(self, host: str) -> bool:
        name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        name = name.lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            own = socket.gethostname().lower()
            return name in ("localhost", own, *(known.lower() for known in self.names))
        # A page's address is never bound to another one, so an address is safe.
        return True
