"""The dispatcher: takes jobs, and runs each in a JobManager process of its own.

It forwards orders to the JobManagers and events to the clients, and keeps a record of each job in a
state folder. Three rules hold:

* Each state folder has one dispatcher, which locks the folder with `flock`.
* The dispatcher decodes no byte of a connection before its peer has proved that it knows the
  token. Only the folder's owner can read the token.
* A JobManager does not live much longer than the dispatcher. When the socket between them closes,
  the JobManager stops its job with a last snapshot. The next dispatcher finds the job's record
  and marks it "lost".
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, StoreError
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import pack_event
from penstock.runtime.control.requests import (
    Cancel,
    ListJobs,
    Order,
    Refused,
    Request,
    Submit,
    decode_request,
)
from penstock.runtime.dispatcher.job_registry import JobRegistry
from penstock.runtime.dispatcher.job_runner import JobRunner
from penstock.runtime.dispatcher.state_folder import StateFolder
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files

#: The interval at which changed records of jobs are saved, in seconds.
SAVE_SECONDS = 1.0
#: The time for which a stopping dispatcher waits until all clients have received the end of their
#: jobs, in seconds.
FOLLOWERS_SECONDS = 1.0


class Dispatcher:
    """Takes jobs and runs them, until a signal stops it.

    Arguments:
        folder: the state folder of the dispatcher.
        port: the TCP port to listen on; 0 for any free port. None listens on a Unix socket.
        host: the TCP address to listen on.
        report: called with each line that reports an event, such as the start of a job.
        log_level: the log level of jobs that set none: a name of `logging`, such as "INFO".
    """

    def __init__(
        self,
        folder: StateFolder,
        port: int | None = None,
        host: str = "127.0.0.1",
        report: Callable[[str], None] = lambda _: None,
        log_level: str = "INFO",
    ) -> None:
        self._folder = folder
        self._port = port
        self._host = host
        self._report = report
        self._log_level = log_level
        self._registry = JobRegistry(folder.jobs, report)
        self._running: dict[str, JobRunner] = {}
        self._stopping = False
        #: The number of clients that receive the events of a job.
        self._following = 0

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop each job with a last snapshot.

        Raises:
            StoreError: if the state folder cannot be used.
            PenstockError: if the dispatcher cannot listen on the port.
        """
        require_open_files(PROCESS_FILES, "the job manager")
        self._folder.open()
        try:
            try:
                self._registry.load()
                self._admission = Admission(self._folder.new_token())
            except OSError as error:
                raise StoreError(
                    f"cannot use the state folder: {error.strerror}", self._folder.root
                ) from error
            listener, address = await self._listen()
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                self._folder.publish_address(address)
                self._report(
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

    # ---- stopping

    async def _stop_all(self) -> None:
        self._stopping = True
        if self._running:
            names = ", ".join(self._running)
            self._report(f"stopping the running jobs ({names}); a second signal kills them")
        for runner in list(self._running.values()):
            await runner.order(Order.STOP)
        for runner in list(self._running.values()):
            await runner.ended.wait()
        with trio.move_on_after(FOLLOWERS_SECONDS):
            while self._following:
                await trio.sleep(0.01)

    async def _kill_on_signal(self, signals: Any) -> None:
        async for _ in signals:
            for runner in self._running.values():
                runner.kill()

    # ---- clients

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            frames = await self._admission.admit(stream)
            if frames is None:
                return
            # An error of one client must not end the dispatcher.
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
                await trio.to_thread.run_sync(self._registry.examine_lost)
                jobs = [asdict(record) for record in self._registry.records]
                await self._reply(frames, {"event": "jobs", "jobs": jobs})
            case Cancel(id, now):
                await self._cancel(frames, id, now)

    async def _reply(self, frames: Frames, event: dict[str, Any]) -> None:
        await frames.send(pack_event(event))

    async def _submit(self, frames: Frames, request: Submit) -> None:
        if self._stopping:
            raise Refused("the job manager is stopping and takes no more jobs")
        record = self._registry.create(request.name, request.folder, request.checkpoint_dir)
        try:
            runner = await JobRunner.start(record, self._registry, self._log_level)
        except OSError as error:
            raise Refused(f"the job cannot be started: {error}") from error
        self._running[record.id] = runner
        events = runner.follow()
        self._nursery.start_soon(self._run, runner, request.job)
        self._report(f"job {record.id} ({record.name}): started with JobManager pid {record.pid}")
        await self._reply(frames, {"event": "submitted", "id": record.id, "log": record.log})
        await self._forward(events, frames)

    async def _forward(self, events: trio.MemoryReceiveChannel[bytes], frames: Frames) -> None:
        """Send the events of a job to a client, until the job has ended."""
        self._following += 1
        try:
            async with events:
                async for frame in events:
                    await frames.send(frame)
        finally:
            self._following -= 1

    async def _cancel(self, frames: Frames, id: str, now: bool) -> None:
        runner = self._running.get(id)
        if runner is None:
            record = self._registry.get(id)
            if record is None:
                raise Refused(f"there is no job {id}; see penstock list")
            raise Refused(f"job {id} does not run: it is {record.state}")
        if now:
            runner.kill()
        else:
            await runner.order(Order.STOP)
        await runner.ended.wait()
        await self._reply(frames, {"event": "cancelled", **asdict(runner.record)})

    # ---- jobs

    async def _run(self, runner: JobRunner, request: bytes) -> None:
        """Run a job until it has ended, and remove old records then."""
        record = runner.record
        await runner.run(request)
        self._report(f"job {record.id} ({record.name}): {record.state}")
        del self._running[record.id]
        runner.ended.set()
        self._registry.forget_old(self._running)

    async def _save_changes(self) -> None:
        while True:
            # A record is not saved at each snapshot, since a job may take many in a second.
            await trio.sleep(SAVE_SECONDS)
            for runner in self._running.values():
                runner.save_changes()
