"""Choose the folders and addresses of Unix sockets.

The path of a Unix socket has at most 107 bytes, so the sockets are in a temporary folder with a
short path. If no such folder can be written, Penstock uses sockets without a path on Linux, and
writes their addresses with a leading `@`. Every user of the machine can connect to such sockets, as
to TCP ports. Only the token protects the job then.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

#: The kernel's limit for the path of a Unix socket, in bytes, without the terminating zero.
MAX_SOCKET_PATH = 107
#: The maximum length of a socket's name in its folder, in bytes.
NAME_BYTES = 32


def socket_name(path: str) -> str:
    """Return the kernel's address of a path that `UnixSockets.bind` has returned."""
    return "\0" + path[1:] if path.startswith("@") else path


class UnixSockets:
    """Creates the Unix sockets on which a process listens.

    Arguments:
        kind: a word that becomes part of the name of the sockets' folder.
        beside: the path of a socket of another process. The sockets of this process are created in
            the same folder, and the other process removes that folder.
    """

    def __init__(self, kind: str = "sockets", beside: str | None = None) -> None:
        self._kind = kind
        self._place = None if beside is None else beside.rpartition("/")[0]
        self._folder: TemporaryFolder | None = None

    def bind(self, name: str) -> tuple[socket.socket, str]:
        """Bind a new socket, and return the socket and its path.

        Arguments:
            name: the name of the socket, of at most `NAME_BYTES` bytes. Its suffix, if it has one,
                is the number of the attempt.

        Raises:
            StoreError: if the socket or its folder cannot be created.
        """
        place = self._place
        # The system may have removed the folder since the last call, as an old temporary file.
        if place is None or not (place.startswith("@") or Path(place).is_dir()):
            self.close()
            self._place = place = self._choose()
        path = f"{place}/{name}"
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(socket_name(path))
        except OSError as error:
            bound.close()
            raise StoreError(f"cannot make a Unix socket: {error.strerror}", path) from error
        return bound, path

    def remove(self, attempt: int) -> None:
        """Remove the sockets of an attempt, if the folder belongs to this process.

        Killed workers do not remove their sockets, and a job may be restarted for months.
        """
        if self._folder is not None:
            with suppress(OSError):
                for path in self._folder.path.iterdir():
                    if path.suffix == f".{attempt}":
                        path.unlink()

    def close(self) -> None:
        """Remove the folder, if it belongs to this process."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = self._place = None

    def _choose(self) -> str:
        refused = []
        # Try /tmp first: the folder of TMPDIR may have a long path, or be on a network.
        for parent in ("/tmp", None):
            try:
                folder = TemporaryFolder(self._kind, parent)
            except StoreError as error:
                refused.append(str(error))
                continue
            path = str(folder.path)
            if len(os.fsencode(path)) + 1 + NAME_BYTES <= MAX_SOCKET_PATH:
                self._folder = folder
                return path
            folder.remove()
            refused.append(f"the path is too long for Unix sockets [{path}]")
        if sys.platform == "linux":
            return f"@penstock-{self._kind}-{secrets.token_hex(16)}"
        raise StoreError(
            "there is no folder for Unix sockets; set TMPDIR to one with a short path that can be "
            "written: " + "; ".join(refused)
        )
