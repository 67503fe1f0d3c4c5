"""Run one submitted job in a JobManager process. (Flink: `JobManagerRunner`.)"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import time
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.runtime.control.failures import sentence_of
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import malformed, pack_event, unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.control.warning_texts import LEVELS, WarningTexts
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.system.children import child_command
from penstock.runtime.system.limits import how_ended
from penstock.runtime.user_code.process_logging import LEVEL_VARIABLE, log_line

#: The maximum number of events that wait for one client. A slower client is disconnected.
MAX_BEHIND = 10_000


class JobRunner:
    """Runs one job, keeps its record up to date, and forwards its events to clients.

    Arguments:
        record: the record of the job, which the runner updates.
        registry: stores the record and the log of the job.
        process: the process of the JobManager.
        frames: the connection to the JobManager.
    """

    def __init__(
        self, record: JobRecord, registry: JobRegistry, process: trio.Process, frames: Frames
    ) -> None:
        self.record = record
        self.ended = trio.Event()
        self._registry = registry
        self._process = process
        self._frames = frames
        self._followers: list[trio.MemorySendChannel[bytes]] = []
        #: A lock that is held while a frame is sent to the JobManager, so that frames do not mix.
        self._sending = trio.Lock()
        self._outcome: str | None = None
        #: Whether the record has changed since it was saved last.
        self._changed = False
        self._texts = WarningTexts()

    @classmethod
    async def start(cls, record: JobRecord, registry: JobRegistry, log_level: str) -> JobRunner:
        """Start the JobManager process of a job, and add the job's record to the registry.

        Raise `OSError` if the process cannot be started, or the log cannot be opened.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with registry.open_log(record.id) as log:
                    process = await trio.lowlevel.open_process(
                        child_command("penstock.runtime.jobmanager.process", str(theirs.fileno())),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[theirs.fileno()],
                        # Only the dispatcher may receive a Ctrl-C at the terminal. It then stops
                        # each job with a last snapshot.
                        start_new_session=True,
                        cwd=record.folder,
                        env={**os.environ, LEVEL_VARIABLE: log_level},
                    )
            except BaseException:
                ours.close()
                raise
        record.pid = process.pid
        frames = Frames(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        registry.add(record)
        return cls(record, registry, process, frames)

    async def run(self, request: bytes) -> None:
        """Send the job to its JobManager, and handle events until the process has ended."""
        record = self.record
        broken = ""
        try:
            async with self._sending:
                await self._frames.send(request)
            while (frame := await self._frames.receive()) is not None:
                event = unpack_event(frame)
                with malformed("event"):
                    self.record_event(event)
                self._publish(frame)
        except ProtocolError as error:
            broken = f", and its connection was closed: {error}"
        except (PenstockError, trio.BrokenResourceError, OSError):
            pass  # the JobManager process has ended, or is about to end
        # When the connection is closed, the JobManager stops its job with a last snapshot.
        await self._frames.aclose()
        code = await self._process.wait()
        how = how_ended(code) + broken
        if self._outcome is None:
            record.error = f"its JobManager process {how}"
            self._log(logging.ERROR, record.error)
        record.state = self._outcome or ("killed" if code < 0 else "failed")
        record.ended = round(time.time(), 3)
        record.worker_pids = []
        self._registry.save(record)
        self._publish(pack_event({"event": "ended", "state": record.state, "how": how}))
        for follower in self._followers:
            follower.close()

    async def order(self, order: Order) -> None:
        """Send an order to the JobManager, or do nothing if the JobManager has ended."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            async with self._sending:
                await self._frames.send(encode_order(order))

    def kill(self) -> None:
        """Kill the JobManager process. Its workers then end by themselves."""
        self._process.kill()

    def record_event(self, event: dict[str, Any]) -> None:
        """Update the record of the job, and log the events that its processes do not log.

        The events that are logged here are restarts, losses and the final failure.
        """
        record = self.record
        for text in self._texts.texts(event):
            self._log(LEVELS[event["event"]], text)
        match event["event"]:
            case "workers":
                record.worker_pids = list(event["pids"])
            case "restarting":
                record.restarts += 1
                record.error = sentence_of(event)
            case "resumed" | "snapshot":
                record.last_snapshot = event["number"]
            case "finished":
                self._outcome = "stopped" if event["stopped"] else "finished"
                record.error = None
            case "failed":
                self._outcome, record.error = "failed", event["message"]
                text = (event.get("user_traceback") or "") + event["message"]
                self._log(logging.ERROR, f"the job has failed:\n{text}")
            case _:
                return
        self._changed = True

    def save_changes(self) -> None:
        """Save the record if it has changed."""
        if self._changed:
            self._changed = False
            self._registry.save(self.record)

    def follow(self) -> trio.MemoryReceiveChannel[bytes]:
        """Return a channel that receives each frame that the JobManager sends from now on."""
        send, receive = trio.open_memory_channel[bytes](MAX_BEHIND)
        self._followers.append(send)
        return receive

    def _publish(self, frame: bytes) -> None:
        """Send a frame to all clients, and disconnect those that read too slowly."""
        for follower in list(self._followers):
            try:
                follower.send_nowait(frame)
            except (trio.WouldBlock, trio.BrokenResourceError):
                follower.close()
                self._followers.remove(follower)

    def _log(self, level: int, text: str) -> None:
        line = log_line(level, "penstock.jobmanager", "JobManager", text)
        with contextlib.suppress(OSError), self._registry.open_log(self.record.id) as log:
            log.write(f"{line.rstrip()}\n".encode(errors="backslashreplace"))
