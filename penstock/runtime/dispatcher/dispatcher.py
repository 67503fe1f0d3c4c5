"""The dispatcher: serves the operations on jobs, and runs each job in a process of its own.

It is a control plane only. These rules hold:

* Each state folder has one dispatcher, which locks the folder with `flock`.
* The dispatcher decodes no byte of a connection before its peer has proved that it knows the
  token. Only the folder's owner can read the token.
* A JobManager lives on when the dispatcher ends or is killed. The next dispatcher finds it by the
  socket of its job, and goes on (`control_plane.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, StoreError
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import pack_event
from penstock.runtime.control.requests import (
    Refused,
    Request,
    ShadowSlots,
    Submit,
    decode_request,
)
from penstock.runtime.dispatcher.answers import answers
from penstock.runtime.dispatcher.control_plane import ControlPlane
from penstock.runtime.dispatcher.job_queue import Limits
from penstock.runtime.dispatcher.state_folder import StateFolder
from penstock.runtime.system.jobmanager_start import jobmanager_starter
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files

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
        limits: the limits of all running jobs together.
        beside: runs beside the jobs until it is cancelled, and gets the operations on jobs. It is
            started before the address is published.
    """

    def __init__(
        self,
        folder: StateFolder,
        port: int | None = None,
        host: str = "127.0.0.1",
        report: Callable[[str], None] = lambda _: None,
        log_level: str = "INFO",
        limits: Limits = Limits(),  # noqa: B008  (it is frozen)
        beside: Callable[..., Awaitable[object]] | None = None,
    ) -> None:
        self._folder = folder
        self._beside = beside
        self._port = port
        self._host = host
        self._report = report
        self.control = ControlPlane(folder, limits, report, log_level)
        #: The number of clients that receive the events of a job.
        self._following = 0

    async def run(self) -> None:
        """Serve until a signal comes.

        After SIGTERM, the jobs go on without the dispatcher. After SIGINT, which is Ctrl-C, each
        job is stopped with a last snapshot before the dispatcher ends.

        Raises:
            StoreError: if the state folder cannot be used.
            PenstockError: if the dispatcher cannot listen on the port.
        """
        require_open_files(PROCESS_FILES, "the job manager")
        self._folder.open()
        # While it listens, a process that forks JobManagers imports what they need.
        jobmanager_starter.expect()
        try:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async with trio.open_nursery() as nursery:
                    try:
                        await nursery.start(self.control.run)
                        self._admission = Admission(self._folder.new_token())
                    except OSError as error:
                        raise StoreError(
                            f"cannot use the state folder: {error.strerror}", self._folder.root
                        ) from error
                    listener, address = await self._listen()
                    if self._beside is not None:
                        await nursery.start(self._beside, self.control)
                    self._folder.publish_address(address)
                    self._report(
                        f"job manager at {address}, pid {os.getpid()}, state in {self._folder.root}"
                    )
                    nursery.start_soon(trio.serve_listeners, self._serve, [listener])
                    if await anext(signals) == signal.SIGINT:
                        nursery.start_soon(self._kill_on_signal, signals)
                        await self.control.stop_all()
                        await self._send_ends()
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

    async def _send_ends(self) -> None:
        with trio.move_on_after(FOLLOWERS_SECONDS):
            while self._following:
                await trio.sleep(0.01)

    async def _kill_on_signal(self, signals: Any) -> None:
        async for _ in signals:
            self.control.kill_all()

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
                    await self._reply(frames, "refused", reason=str(refusal))

    async def _answer(self, frames: Frames, request: Request) -> None:
        if isinstance(request, Submit):
            await self._submit(frames, request)
            return
        if isinstance(request, ShadowSlots):
            with self.control.shadow_slots(request):
                await self._reply(frames, "reserved")
                # The client sends nothing more, so this waits until it has closed the connection.
                await frames.receive()
            return
        async with contextlib.aclosing(answers(self.control, request)) as found:
            async for answer in found:
                await frames.send(pack_event(answer))

    async def _reply(self, frames: Frames, event: str, **fields: Any) -> None:
        await frames.send(pack_event({"event": event, **fields}))

    async def _submit(self, frames: Frames, request: Submit) -> None:
        record = await self.control.submit(request)
        async with self.control.following(record.id) as events:
            await self._reply(frames, "submitted", id=record.id, log=record.log)
            if record.waiting:
                await self._reply(frames, "queued", reason=record.waiting)
            self._following += 1
            try:
                if events is not None:
                    async for event in events:
                        await frames.send(pack_event(event))
            finally:
                self._following -= 1
