"""The state folder of the job service: its lock, its address and token, and its records of jobs.

The dispatcher and its clients find each other by it. The folder is private to its owner (0700),
since a reader of the token can run code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.dataflow.errors import StoreError
from penstock.runtime.system.unix_sockets import MAX_SOCKET_PATH, UnixSockets

__all__ = ["JobRecord", "StateFolder"]


@dataclass
class JobRecord:
    """A job as the service knows it; what is kept on disk.

    Arguments:
        id: a number, as text.
        name: the job's.
        state: "running", "finished", "stopped", "failed", "killed" (its JobManager died) or
            "lost" (the daemon died while it ran).
        started, ended: seconds since the epoch; None if it has not ended.
        pid: of its JobManager process.
        worker_pids: of its workers.
        restarts: how many so far.
        last_snapshot: the number of the newest complete one, or None.
        folder: the working directory.
        log: where its standard output and error go.
        error: what it failed with, or how it was killed; while it runs, why it was restarted last.
    """

    id: str
    name: str
    state: str = "running"
    started: float = 0.0
    ended: float | None = None
    pid: int | None = None
    worker_pids: list[int] = field(default_factory=list)
    restarts: int = 0
    last_snapshot: int | None = None
    folder: str = ""
    log: str = ""
    error: str | None = None


class StateFolder:
    """The files by which a daemon and its clients find each other.

    Arguments:
        root: the folder; by default `$PENSTOCK_HOME`, else `~/.penstock`.
    """

    def __init__(self, root: Path | None = None) -> None:
        chosen = root or Path(os.environ.get("PENSTOCK_HOME") or Path.home() / ".penstock")
        self.root = chosen.absolute()
        self.jobs = self.root / "jobs"
        self._lock: int | None = None
        self._sockets = UnixSockets("service")

    def open(self) -> None:
        """Make the folder, private to this user, and take it for this process.

        Raises `StoreError` if another daemon has it, or it is not ours alone.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_private()
            self._make_jobs()
            # It is truncated: what a link at this name leads to must not be.
            lock = _open(self.root / "lock", os.O_RDWR | os.O_CREAT)
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
        # Somebody's folder with other things in it is not ours to shut, nor to write into.
        if any(self.root.iterdir()) and not (self.root / "lock").exists():
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
        """Write a new token, readable by the owner only, and return it."""
        token = secrets.token_bytes(32)
        self._replace(self.root / "token", token.hex().encode())
        return token

    def bind_socket(self) -> tuple[socket.socket, str]:
        """Bind the Unix socket of the service; returns it and its path.

        It lies in the folder, or where its path is short enough. Raises `StoreError`.
        """
        path = self.root / "socket"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            return self._sockets.bind("socket")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Nobody listens on one that is left over: we hold the lock.
            path.unlink(missing_ok=True)
            bound.bind(os.fspath(path))
        except OSError as error:
            bound.close()
            raise StoreError(f"cannot make the socket: {error.strerror}", path) from error
        return bound, str(path)

    def publish_address(self, address: str) -> None:
        """Let clients find the daemon."""
        self._replace(self.root / "address", address.encode())

    def contact(self) -> tuple[str, bytes] | None:
        """The address and the token of the daemon, or None if none seems to run."""
        try:
            address = _read(self.root / "address").decode()
            return address, bytes.fromhex(_read(self.root / "token").decode())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreError(
                f"cannot read the job manager's address: {error}", self.root
            ) from error

    def close(self) -> None:
        """Remove what led clients here, and let the folder go."""
        for name in ("address", "token", "socket"):
            with contextlib.suppress(OSError):
                (self.root / name).unlink()
        self._sockets.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- records of jobs

    def load(self) -> tuple[dict[str, JobRecord], int]:
        """The records of earlier daemons, oldest first, and the next free number.

        Jobs that still ran are lost now. Raises `OSError`.
        """
        paths = [path for path in self.jobs.glob("*.json") if path.stem.isdecimal()]
        records = []
        for path in paths:
            # One that cannot be read (a full disk, a hand) must not keep the daemon from starting.
            with contextlib.suppress(OSError, ValueError, TypeError):
                records.append(JobRecord(**json.loads(_read(path))))
        records.sort(key=lambda record: int(record.id))
        for record in records:
            if record.state == "running":
                record.state = "lost"
                record.error = "the job manager died while the job ran"
                record.worker_pids = []
                self.save(record)
        free = max((int(path.stem) for path in paths), default=0) + 1
        return {record.id: record for record in records}, free

    def save(self, record: JobRecord) -> None:
        """Keep a record. Raises `OSError`."""
        data = json.dumps(asdict(record), indent=1).encode()
        self._replace(self.jobs / f"{record.id}.json", data)

    def log(self, id: str) -> Path:
        """The file that takes a job's output."""
        return self.jobs / f"{id}.log"

    def open_log(self, id: str) -> BinaryIO:
        """Open the file that takes a job's output, to append to it. Raises `OSError`."""
        return open(_open(self.log(id), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")

    def forget(self, id: str) -> None:
        """Remove a job's record and log."""
        for path in (self.jobs / f"{id}.json", self.log(id)):
            path.unlink(missing_ok=True)

    def _replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)


def _open(path: Path, flags: int) -> int:
    """Open a regular file of the folder, but not what a link leads to. Raises `OSError`.

    The folder may have been open to others before it became private, with links in it.
    """
    # A FIFO would hold up who opens it.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file; remove it", os.fspath(path))
    return descriptor


def _read(path: Path) -> bytes:
    with open(_open(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a link, which the job manager does not follow; remove it"
    return error.strerror or str(error)
