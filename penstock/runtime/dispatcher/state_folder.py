"""The state folder of the job service: its lock, its address and its token.

A client reads the address and the token of the dispatcher from this folder. Only the owner of the
folder can access it (mode 0700), because every reader of the token can run code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import stat
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.runtime.system.private_files import open_private, read_private, replace_private
from penstock.runtime.system.unix_sockets import MAX_SOCKET_PATH, UnixSockets

#: The folder of the tokens of the HTTP API, which also programs without a service have.
TOKEN_FOLDER = "http"


class StateFolder:
    """The folder in which clients find the address and the token of a dispatcher.

    Arguments:
        root: the path of the folder. None means `$PENSTOCK_HOME`, or `~/.penstock` if that variable
            is not set.
    """

    def __init__(self, root: Path | None = None) -> None:
        chosen = root or Path(os.environ.get("PENSTOCK_HOME") or Path.home() / ".penstock")
        self.root = chosen.absolute()
        self.jobs = self.root / "jobs"
        self._lock: int | None = None
        self._sockets = UnixSockets("service")

    def open(self) -> None:
        """Create the folder if needed, make it private to this user, and lock it.

        Raise `StoreError` if another dispatcher has locked the folder, if it belongs to another
        user or contains other files, or if it cannot be written.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_private()
            self._make_jobs()
            # The lock file is truncated below, so it must not be a link to another file.
            lock = open_private(self.root / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(
                f"cannot use the state folder: {_reason(error)}", error.filename or self.root
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 100).decode(errors="replace").strip()
            os.close(lock)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"cannot lock: {error.strerror}", self.root / "lock") from error
            raise StoreError(
                f"a job manager already runs here, with pid {holder}; stop it first, or use "
                f"another state folder (--dir)",
                self.root,
            ) from None
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    def _make_private(self) -> None:
        about = self.root.stat()
        if about.st_uid != os.getuid():
            raise StoreError("the state folder belongs to another user", self.root)
        # A folder with other files may serve another purpose, so neither its mode nor its content
        # is changed.
        names = {path.name for path in self.root.iterdir()}
        if names - {TOKEN_FOLDER} and not (self.root / "lock").exists():
            raise StoreError(
                "the folder holds other files and is no state folder of Penstock; give an empty "
                "or a new one",
                self.root,
            )
        if stat.S_IMODE(about.st_mode) & 0o077:
            self.root.chmod(0o700)

    def _make_jobs(self) -> None:
        self.jobs.mkdir(mode=0o700, exist_ok=True)
        about = self.jobs.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise StoreError("not a folder of this user; remove it", self.jobs)

    def new_token(self) -> bytes:
        """Write a new token, which only the owner can read, and return the token.

        Raise `OSError` if it cannot be written.
        """
        token = secrets.token_bytes(32)
        replace_private(self.root / "token", token.hex().encode())
        return token

    def bind_socket(self) -> tuple[socket.socket, str]:
        """Bind the Unix socket of the service, and return the socket and its path.

        The socket is in the state folder, or in a temporary folder if its path would be too long.
        Raise `StoreError` if the socket cannot be created.
        """
        path = self.root / "socket"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            return self._sockets.bind("socket")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Another dispatcher may have left this socket. No process listens on it, since this
            # process holds the lock.
            path.unlink(missing_ok=True)
            bound.bind(os.fspath(path))
        except OSError as error:
            bound.close()
            raise StoreError(f"cannot make the socket: {error.strerror}", path) from error
        return bound, str(path)

    def publish_address(self, address: str) -> None:
        """Write the dispatcher's address for its clients.

        Raise `OSError` if it cannot be written.
        """
        replace_private(self.root / "address", address.encode())

    def contact(self) -> tuple[str, bytes] | None:
        """Return the address and the token of the dispatcher.

        If the files do not exist, no dispatcher seems to run, so return None. Raise `StoreError` if
        the files cannot be read.
        """
        try:
            address = read_private(self.root / "address").decode()
            return address, bytes.fromhex(read_private(self.root / "token").decode())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreError(
                f"cannot read the job manager's address: {error}", self.root
            ) from error

    def close(self) -> None:
        """Remove the address, the token and the socket, and unlock the folder."""
        for name in ("address", "token", "socket"):
            with contextlib.suppress(OSError):
                (self.root / name).unlink()
        self._sockets.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a link, which the job manager does not follow; remove it"
    return error.strerror or str(error)
