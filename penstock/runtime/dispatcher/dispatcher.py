"""The job service: a daemon on one machine that takes jobs and runs each in its own JobManager.

Not a JobManager itself: it starts one process per job (`jobprocess.py`), passes requests and
events on, and remembers how each job stands, in a state folder (`control/home.py`).

Invariants: one daemon per state folder, by `flock`; nothing of a connection is decoded before it
has shown that it knows the token, which only the folder's owner can read; and a job's JobManager
never outlives the daemon for long, since it stops its job, with a last snapshot, as soon as the
socket between them closes. The records of such jobs say "lost" once a new daemon reads them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError, StoreError
from penstock.runtime.control.failures import sentence_of
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshakes import Handshakes
from penstock.runtime.control.packing import malformed, pack_event, unpack_event
from penstock.runtime.control.requests import (
    Cancel,
    ListJobs,
    Order,
    Refused,
    Request,
    Submit,
    decode_request,
    encode_order,
)
from penstock.runtime.control.restart_texts import LEVELS, RestartTexts
from penstock.runtime.dispatcher.job_registry import JobRecord, StateFolder
from penstock.runtime.system.children import child_command
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.user_code.process_logging import LEVEL_VARIABLE, log_line

__all__ = ["Dispatcher"]

#: An ended job's record and log are kept for so many jobs.
KEEP_ENDED = 100
#: A follower that is so many events behind is cut off.
MAX_BEHIND = 10_000


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
        self.restarts = RestartTexts()


class Dispatcher:
    """Takes jobs and runs them, until it is told to stop.

    Arguments:
        folder: its state folder.
        port: TCP port to listen on, 0 for any free one; None listens on a Unix socket.
        host: the TCP address to listen on.
        say: takes lines about what happens.
        log_level: of jobs that set none; a name of `logging`.
    """

    def __init__(
        self,
        folder: StateFolder,
        port: int | None = None,
        host: str = "127.0.0.1",
        say: Callable[[str], None] = lambda _: None,
        log_level: str = "INFO",
    ) -> None:
        self._folder = folder
        self._port = port
        self._host = host
        self._say = say
        self._log_level = log_level
        self._records: dict[str, JobRecord] = {}
        self._running: dict[str, _Job] = {}
        self._stopping = False
        self._following = 0
        self._next = 1

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop all jobs in order.

        Raises `StoreError` if the state folder cannot be had, `PenstockError` if the port cannot.
        """
        require_open_files(PROCESS_FILES, "the job manager")
        self._folder.open()
        try:
            try:
                self._records, self._next = self._folder.load()
                self._handshakes = Handshakes(self._folder.new_token())
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
            bound, path = self._folder.bind_socket()
            bound.listen(64)
            listening = trio.socket.from_stdlib_socket(bound)
            return trio.SocketListener(listening), f"unix:{path}"
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
            names = ", ".join(self._running)
            self._say(f"stopping the running jobs ({names}); a second signal kills them")
        for job in list(self._running.values()):
            await self._order(job, Order.STOP)
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
            frames = await self._handshakes.admit(stream)
            if frames is None:
                return
            # A client that goes away is no matter of ours.
            with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                request = await frames.receive()
                if request is None:
                    return
                try:
                    await self._answer(frames, decode_request(request))
                except Refused as refusal:
                    await self._reply(frames, {"event": "refused", "reason": str(refusal)})

    async def _answer(self, frames: Frames, request: Request) -> None:
        match request:
            case Submit():
                await self._submit(frames, request)
            case ListJobs():
                jobs = [asdict(record) for record in self._records.values()]
                await self._reply(frames, {"event": "jobs", "jobs": jobs})
            case Cancel(id, now):
                await self._cancel(frames, id, now)

    async def _reply(self, frames: Frames, event: dict[str, Any]) -> None:
        await frames.send(pack_event(event))

    async def _submit(self, frames: Frames, request: Submit) -> None:
        if self._stopping:
            raise Refused("the job manager is stopping and takes no more jobs")
        record = JobRecord(str(self._next), request.name, started=round(time.time(), 3))
        self._next += 1
        record.folder = request.folder
        record.log = str(self._folder.log(record.id))
        try:
            job = await self._start(record)
        except OSError as error:
            raise Refused(f"the job cannot be started: {error}") from error
        following = self._follow(job) if request.wait else None
        self._nursery.start_soon(self._run, job, request.job)
        self._say(f"job {record.id} ({record.name}): started with JobManager pid {record.pid}")
        await self._reply(frames, {"event": "submitted", "id": record.id, "log": record.log})
        if following is not None:
            await self._forward(following, frames)

    async def _start(self, record: JobRecord) -> _Job:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._folder.open_log(record.id) as log:
                    process = await trio.lowlevel.open_process(
                        child_command("penstock.runtime.jobmanager.process", str(theirs.fileno())),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[theirs.fileno()],
                        # A Ctrl-C at the terminal is for the daemon, which stops jobs in order.
                        start_new_session=True,
                        cwd=record.folder,
                        env={**os.environ, LEVEL_VARIABLE: self._log_level},
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
                raise Refused(f"there is no job {id}; see penstock list")
            raise Refused(f"job {id} does not run: it is {record.state}")
        if now:
            job.process.kill()
        else:
            await self._order(job, Order.STOP)
        await job.ended.wait()
        await self._reply(frames, {"event": "cancelled", **asdict(job.record)})

    # ---- jobs

    async def _order(self, job: _Job, order: Order) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            async with job.sending:
                await job.frames.send(encode_order(order))

    async def _run(self, job: _Job, request: bytes) -> None:
        """See a job through: send it its code, take its events, wait for its process."""
        record = job.record
        broken = ""
        try:
            async with job.sending:
                await job.frames.send(request)
            while (frame := await job.frames.receive()) is not None:
                event = unpack_event(frame)
                with malformed("event"):
                    self._take(job, event)
                self._tell(job, frame)
        except ProtocolError as error:
            broken = f", and its connection was closed: {error}"
        except (PenstockError, trio.BrokenResourceError, OSError):
            pass  # it has ended, or is about to
        # Without a client the process stops its job, with a last snapshot.
        await job.frames.aclose()
        code = await job.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        how += broken
        if job.outcome is None:
            record.error = f"its JobManager process {how}"
            self._log(record, logging.ERROR, record.error)
        record.state = job.outcome or ("killed" if code < 0 else "failed")
        record.ended = round(time.time(), 3)
        record.worker_pids = []
        self._save(record)
        self._say(f"job {record.id} ({record.name}): {record.state}")
        self._tell(job, pack_event({"event": "ended", "state": record.state, "how": how}))
        for follower in job.followers:
            follower.close()
        del self._running[record.id]
        job.ended.set()
        self._forget_old()

    def _take(self, job: _Job, event: dict[str, Any]) -> None:
        record = job.record
        text = job.restarts.text(event)
        if text is not None:
            self._log(record, LEVELS[event["event"]], text)
        match event["event"]:
            case "workers":
                record.worker_pids = list(event["pids"])
            case "restarting":
                record.restarts += 1
                record.error = sentence_of(event)
            case "resumed" | "snapshot":
                record.last_snapshot = event["number"]
            case "finished":
                job.outcome = "stopped" if event["stopped"] else "finished"
                record.error = None
            case "failed":
                job.outcome, record.error = "failed", event["message"]
                text = (event.get("user_traceback") or "") + event["message"]
                self._log(record, logging.ERROR, f"the job has failed:\n{text}")
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

    def _log(self, record: JobRecord, level: int, text: str) -> None:
        """Append to a job's log what its processes do not log."""
        text = log_line(level, "penstock.jobmanager", "JobManager", text)
        with contextlib.suppress(OSError), self._folder.open_log(record.id) as log:
            log.write(f"{text.rstrip()}\n".encode(errors="backslashreplace"))

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
