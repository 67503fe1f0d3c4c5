"""The job service: a daemon on one machine that takes jobs and runs each in its own JobManager.

It keeps a state folder: who runs it (`lock`), how to reach it (`address`, `token`), and a record
and a log of each job. Not a JobManager itself: it starts one process per job (`jobprocess.py`),
passes requests and events on, and remembers how each job stands.

Invariants: one daemon per state folder, by `flock`; nothing of a connection is decoded before it
has shown that it knows the token, which only the folder's owner can read; and a job's JobManager
never outlives the daemon for long, since it stops its job, with a last snapshot, as soon as the
socket between them closes. The records of such jobs say "lost" once a new daemon reads them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import trio

import penstock
from penstock.dataflow.errors import PenstockError, ProtocolError, StoreError
from penstock.runtime.control.wire import Frames, accept
from penstock.runtime.control.world import child_environment

__all__ = ["Daemon", "JobRecord", "StateFolder", "versions"]

#: An ended job's record and log are kept for so many jobs.
KEEP_ENDED = 100
#: A connection must show within this time that it knows the token.
GREETING_SECONDS = 10.0
#: A follower that is so many events behind is cut off.
MAX_BEHIND = 10_000
#: The kernel's limit for the path of a Unix socket, without the closing zero.
MAX_SOCKET_PATH = 107


def versions() -> list[str]:
    """What must be equal at both ends, since code is shipped: Python's and Penstock's version."""
    major, minor = sys.version_info[:2]
    return [f"Python {major}.{minor}", f"Penstock {penstock.__version__}"]


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
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
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
        if not stat.S_IMODE(about.st_mode) & 0o077:
            return
        # Somebody's folder with other things in it is not ours to shut.
        if any(self.root.iterdir()) and not (self.root / "lock").exists():
            raise StoreError(
                "the folder holds other files and is open to other users; give an empty one, or "
                "make it private (chmod 700)",
                self.root,
            )
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


class _Job:
    """A running job: its process, its connection, and who follows it."""

    def __init__(self, record: JobRecord, process: trio.Process, frames: Frames) -> None:
        self.record = record
        self.process = process
        self.frames = frames
        self.followers: list[trio.MemorySendChannel[bytes]] = []
        #: Held while something is sent, since the job's code may take a while.
        self.sending = trio.Lock()
        self.ended = trio.Event()
        self.outcome: str | None = None
        self.dirty = False


class Daemon:
    """Takes jobs and runs them, until it is told to stop.

    Arguments:
        folder: its state folder.
        port: TCP port to listen on, 0 for any free one; None listens on a Unix socket.
        host: the TCP address to listen on.
        say: takes lines about what happens.
    """

    def __init__(
        self,
        folder: StateFolder,
        port: int | None = None,
        host: str = "127.0.0.1",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._port = port
        self._host = host
        self._say = say
        self._records: dict[str, JobRecord] = {}
        self._running: dict[str, _Job] = {}
        self._stopping = False
        self._following = 0
        self._next = 1

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop all jobs in order.

        Raises `StoreError` if the state folder cannot be had, `PenstockError` if the port cannot.
        """
        self._folder.open()
        try:
            try:
                self._records, self._next = self._folder.load()
                self._token = self._folder.new_token()
            except OSError as error:
                raise StoreError(
                    f"cannot use the state folder: {error.strerror}", self._folder.root
                ) from error
            listener, address = await self._listen()
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                self._folder.publish_address(address)
                self._say(
                    f"job manager at {address}, pid {os.getpid()}, state in {self._folder.root}"
                )
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(trio.serve_listeners, self._serve, [listener])
                    nursery.start_soon(self._save_changes)
                    await anext(signals)
                    nursery.start_soon(self._kill_on_signal, signals)
                    await self._stop_all()
                    nursery.cancel_scope.cancel()
        finally:
            self._folder.close()

    async def _listen(self) -> tuple[trio.abc.Listener[trio.SocketStream], str]:
        if self._port is None:
            path = self._folder.socket_path()
            bound = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            await bound.bind(os.fspath(path))
            bound.listen(64)
            return trio.SocketListener(bound), f"unix:{path}"
        try:
            listeners = await trio.open_tcp_listeners(self._port, host=self._host)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                reason = "it is in use; give another with --port, or 0 for any that is free"
            raise PenstockError(
                f"cannot listen on port {self._port} of {self._host}: {reason}"
            ) from error
        port = listeners[0].socket.getsockname()[1]
        return listeners[0], f"tcp:{self._host}:{port}"

    # ---- the end

    async def _stop_all(self) -> None:
        self._stopping = True
        if self._running:
            self._say(f"stopping {len(self._running)} jobs; a second signal kills them")
        for job in list(self._running.values()):
            await self._ask(job, "stop")
        for job in list(self._running.values()):
            await job.ended.wait()
        # Give followers a moment to hear how their jobs ended.
        with trio.move_on_after(1.0):
            while self._following:
                await trio.sleep(0.01)

    async def _kill_on_signal(self, signals: Any) -> None:
        async for _ in signals:
            for job in self._running.values():
                job.process.kill()

    # ---- clients

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            frames: Frames | None = None
            with trio.move_on_after(GREETING_SECONDS):
                with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                    frames = await accept(stream, self._token)
            if frames is None:
                return
            # A client that goes away is no matter of ours.
            with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                request = await frames.receive()
                if request is None:
                    return
                try:
                    await self._answer(frames, msgpack.unpackb(request))
                except _Refused as refusal:
                    await self._reply(frames, {"event": "refused", "reason": str(refusal)})

    async def _answer(self, frames: Frames, request: dict[str, Any]) -> None:
        # From equal versions on, a request is known to be well formed.
        theirs = request.get("versions", ["an older version"])
        if theirs != versions():
            raise _Refused(
                f"the job manager runs {' and '.join(versions())}, and this is "
                f"{' and '.join(theirs)}; code can only go between equal versions"
            )
        match request["do"]:
            case "submit":
                await self._submit(frames, request)
            case "list":
                jobs = [asdict(record) for record in self._records.values()]
                await self._reply(frames, {"event": "jobs", "jobs": jobs})
            case "cancel":
                await self._cancel(frames, str(request["id"]), bool(request["now"]))
            case unknown:
                raise ProtocolError(f"the job manager was asked to {unknown!r}")

    async def _reply(self, frames: Frames, event: dict[str, Any]) -> None:
        await frames.send(msgpack.packb(event))

    async def _submit(self, frames: Frames, request: dict[str, Any]) -> None:
        if self._stopping:
            raise _Refused("the job manager is stopping and takes no more jobs")
        record = JobRecord(str(self._next), request["name"], started=round(time.time(), 3))
        self._next += 1
        record.folder = request["folder"]
        record.log = str(self._folder.log(record.id))
        try:
            job = await self._start(record)
        except OSError as error:
            raise _Refused(f"the job cannot be started: {error}") from error
        following = self._follow(job) if request["wait"] else None
        self._nursery.start_soon(self._run, job, request["job"])
        self._say(f"job {record.id} ({record.name}): started with JobManager pid {record.pid}")
        await self._reply(frames, {"event": "submitted", "id": record.id, "log": record.log})
        if following is not None:
            await self._forward(following, frames)

    async def _start(self, record: JobRecord) -> _Job:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                descriptor = os.open(record.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with open(descriptor, "ab") as log:
                    process = await trio.lowlevel.open_process(
                        [sys.executable, "-m", "penstock.runtime.jobprocess", str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[theirs.fileno()],
                        # A Ctrl-C at the terminal is for the daemon, which stops jobs in order.
                        start_new_session=True,
                        cwd=record.folder,
                        env=child_environment(),
                    )
            except BaseException:
                ours.close()
                raise
        record.pid = process.pid
        frames = Frames(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        job = _Job(record, process, frames)
        self._records[record.id] = record
        self._running[record.id] = job
        self._save(record)
        return job

    async def _cancel(self, frames: Frames, id: str, now: bool) -> None:
        job = self._running.get(id)
        if job is None:
            record = self._records.get(id)
            if record is None:
                raise _Refused(f"there is no job {id}; see penstock list")
            raise _Refused(f"job {id} does not run: it is {record.state}")
        if now:
            job.process.kill()
        else:
            await self._ask(job, "stop")
        await job.ended.wait()
        await self._reply(frames, {"event": "cancelled", **asdict(job.record)})

    # ---- jobs

    async def _ask(self, job: _Job, what: str) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            async with job.sending:
                await job.frames.send(msgpack.packb({"do": what}))

    async def _run(self, job: _Job, request: bytes) -> None:
        """See a job through: send it its code, take its events, wait for its process."""
        record = job.record
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            async with job.sending:
                await job.frames.send(request)
            while (frame := await job.frames.receive()) is not None:
                self._take(job, msgpack.unpackb(frame, strict_map_key=False))
                self._tell(job, frame)
        code = await job.process.wait()
        await job.frames.aclose()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        if job.outcome is None:
            record.error = record.error or f"its JobManager process {how}"
        record.state = job.outcome or "killed"
        record.ended = round(time.time(), 3)
        record.worker_pids = []
        self._save(record)
        self._say(f"job {record.id} ({record.name}): {record.state}")
        self._tell(job, msgpack.packb({"event": "ended", "state": record.state, "how": how}))
        for follower in job.followers:
            follower.close()
        del self._running[record.id]
        job.ended.set()
        self._forget_old()

    def _take(self, job: _Job, event: dict[str, Any]) -> None:
        record = job.record
        match event["event"]:
            case "workers":
                record.worker_pids = list(event["pids"])
            case "restarting":
                record.restarts += 1
            case "resumed" | "snapshot":
                record.last_snapshot = event["number"]
            case "finished":
                job.outcome = "stopped" if event["stopped"] else "finished"
            case "failed":
                job.outcome, record.error = "failed", event["message"]
            case _:
                return
        job.dirty = True

    def _follow(self, job: _Job) -> trio.MemoryReceiveChannel[bytes]:
        send, receive = trio.open_memory_channel[bytes](MAX_BEHIND)
        job.followers.append(send)
        return receive

    async def _forward(self, events: trio.MemoryReceiveChannel[bytes], frames: Frames) -> None:
        self._following += 1
        try:
            async with events:
                async for frame in events:
                    await frames.send(frame)
        finally:
            self._following -= 1

    def _tell(self, job: _Job, frame: bytes) -> None:
        for follower in list(job.followers):
            try:
                follower.send_nowait(frame)
            except (trio.WouldBlock, trio.BrokenResourceError):
                follower.close()
                job.followers.remove(follower)

    def _save(self, record: JobRecord) -> None:
        try:
            self._folder.save(record)
        except OSError as error:
            # The jobs matter more than the book about them.
            self._say(f"the record of job {record.id} cannot be written: {error}")

    async def _save_changes(self) -> None:
        while True:
            # Not at each snapshot, of which there may be many a second.
            await trio.sleep(1.0)
            for job in self._running.values():
                if job.dirty:
                    job.dirty = False
                    self._save(job.record)

    def _forget_old(self) -> None:
        ended = [id for id in self._records if id not in self._running]
        for id in ended[:-KEEP_ENDED]:
            del self._records[id]
            with contextlib.suppress(OSError):
                self._folder.forget(id)


class _Refused(Exception):
    """A request is not carried out; the text is for its sender."""
