"""The state folder of the job service: who runs it, how to reach it, and what its jobs were.

Daemon and clients find each other here, so both use it; nothing here talks to anybody. The folder
is its owner's alone (0700), since who can read the token can run code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.dataflow.errors import StoreError

__all__ = ["JobRecord", "StateFolder"]

#: The kernel's limit for the path of a Unix socket, without the closing zero.
MAX_SOCKET_PATH = 107


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
        error: what it failed with, or how it was killed.
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
        self._socket_folder: Path | None = None

    def open(self) -> None:
        """Make the folder, private to this user, and take it for this process.

        Raises `StoreError` if another daemon has it, or it is not ours alone.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_private()
            self.jobs.mkdir(mode=0o700, exist_ok=True)
            # It is truncated: what a link at this name leads to must not be.
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use the state folder: {error.strerror}", self.root) from error
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

    def new_token(self) -> bytes:
        """Write a new token, readable by the owner only, and return it."""
        token = secrets.token_bytes(32)
        self._replace(self.root / "token", token.hex().encode())
        return token

    def socket_path(self) -> Path:
        """Where the Unix socket lies: in the folder, or where its path is short enough."""
        path = self.root / "socket"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            base = "/tmp" if os.path.isdir("/tmp") else None  # noqa: PTH112
            self._socket_folder = Path(tempfile.mkdtemp(prefix="penstock-", dir=base))
            path = self._socket_folder / "socket"
        # Nobody listens on one that is left over: we hold the lock.
        path.unlink(missing_ok=True)
        return path

    def publish_address(self, address: str) -> None:
        """Let clients find the daemon."""
        self._replace(self.root / "address", address.encode())

    def contact(self) -> tuple[str, bytes] | None:
        """The address and the token of the daemon, or None if none seems to run."""
        try:
            address = (self.root / "address").read_text()
            return address, bytes.fromhex((self.root / "token").read_text())
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
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
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
                records.append(JobRecord(**json.loads(path.read_bytes())))
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
