"""The JobManager as a process of its own, talking to the client that started it.

Started by `child_command` with the argument FD, where FD is one end of a socket pair whose
other end the client holds; nobody else can reach it. Frames of msgpack go both ways: first the
job, then `{"do": "stop"}` and the like from the client and events from the JobManager. When the
client is gone, the job is stopped in order and stays resumable.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import trio

from penstock.dataflow.errors import JobError, PenstockError, ProtocolError
from penstock.dataflow.job_process import running_as
from penstock.runtime.control.failures import describe
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import build_from_map, pack_event
from penstock.runtime.control.requests import decode_job, decode_order
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.reporting.job_log import JobLog
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.system import System, real_system
from penstock.runtime.user_code.breakpoints import refuse_breakpoints
from penstock.runtime.user_code.errors import is_user_error
from penstock.runtime.user_code.forks import watch_forks
from penstock.runtime.user_code.process_logging import LogAttributes, ProcessLogging

__all__ = ["JobServer", "main"]

STATUS_SECONDS = 0.5
#: So long the end of a job waits for a client that lives to hear of it.
TELL_SECONDS = 60.0
#: And for so long, if it is told to stop meanwhile.
LEAVE_SECONDS = 5.0
#: A job whose client is gone, and that has not ended for so long, names its processes.
ORPHAN_SECONDS = 3.0
#: A client that is so many events behind misses those that later ones make up for.
MAX_BEHIND = 10_000
_PASSING = ("snapshot", "committed", "aborted")


class JobServer:
    """Serves one client and runs one job.

    Arguments:
        frames: the connection to the client.
        make_system: makes the job's system, given the address on which it is to listen.
        signals: whether SIGTERM and SIGINT of this process stop the job; not where the process
            is somebody else's, such as a Spark driver.
        logs: the logging of the process; None leaves it alone.
    """

    def __init__(
        self,
        frames: Frames,
        make_system: Callable[[str | None], System] = real_system,
        signals: bool = True,
        logs: LogAttributes | None = None,
    ) -> None:
        self._frames = frames
        self._make_system = make_system
        self._signals = signals
        self._logs = logs
        self._log: JobLog | None = None
        self._outbox: list[dict[str, Any]] = []
        self._client_gone = False
        self._ended = False
        self._workers: list[int] = []
        self._signal = Signal()
        self._job: JobManager | None = None
        self._stop_scope = trio.CancelScope()
        self._telling = trio.CancelScope()

    def observe(self, event: dict[str, Any]) -> None:
        """Send an event to the client."""
        if self._log is not None:
            self._log.take(event)
        if event["event"] == "workers":
            self._workers = event["pids"]
        if self._client_gone:
            return
        if len(self._outbox) >= MAX_BEHIND and event["event"] in _PASSING:
            return
        self._outbox.append(event)
        self._ended = self._ended or event["event"] in ("finished", "failed")
        self._signal.set()

    async def run(self) -> int:
        """Run the job that the client sends; returns the exit code."""
        request = await self._frames.receive()
        if request is None:
            return 2
        try:
            job = decode_job(request)
            options = build_from_map(JobSettings, job.options)
        except ProtocolError as error:
            await self._frames.send(pack_event({"event": "failed", **describe(error)}))
            return 2
        sys.path[:] = job.search_path + [p for p in sys.path if p not in job.search_path]
        code = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            try:
                system = self._make_system(job.host)
                self._job = JobManager(job.code, system, options, self.observe)
                if self._logs is not None:
                    self._logs.configure(self._job.code.logging)
                self._log = JobLog(self._job.config.name, options.shown)
                self.observe(
                    {"event": "started", "pid": os.getpid(), "operators": self._operators()}
                )
                nursery.start_soon(self._listen, nursery)
                if self._signals:
                    nursery.start_soon(self._watch_signals, nursery)
                nursery.start_soon(self._tell_status)
                with self._stop_scope:
                    outcome = await self._job.run()
                    self.observe({"event": "finished", **vars(outcome)})
                    code = 0
                if self._stop_scope.cancelled_caught:
                    seconds = self._job.config.stop_timeout_seconds
                    raise JobError(
                        f"the job was stopped, but its last snapshot was not done within "
                        f"{seconds:g} s; it can be resumed from the one before"
                    )
            except PenstockError as error:
                self.observe({"event": "failed", **describe(error), "report": self._report()})
            except BaseException as error:
                if not is_user_error(error):
                    raise
                import traceback

                text = "".join(traceback.format_exception(error))
                self.observe(
                    {
                        "event": "failed",
                        "family": "ProtocolError",
                        "message": f"{text}\nthe JobManager failed",
                        "report": self._report(),
                    }
                )
            self._telling.deadline = trio.current_time() + TELL_SECONDS
            with self._telling:
                while self._outbox:
                    await trio.sleep(0.005)
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
        return code

    def _operators(self) -> list[list[str]]:
        assert self._job is not None
        return [[info.uid, info.name] for info in self._job.plan.operators]

    def _report(self) -> dict[str, Any]:
        return vars(self._job.outcome()) if self._job is not None else {}

    async def _write(self) -> None:
        try:
            while True:
                while self._outbox:
                    await self._frames.send(pack_event(self._outbox[0]))
                    del self._outbox[0]
                await self._signal.wait()
        except (trio.BrokenResourceError, OSError):
            # Nobody is left to tell; the end must not wait for it.
            self._client_gone = True
            self._outbox.clear()

    async def _listen(self, nursery: trio.Nursery) -> None:
        while True:
            order = None
            # A malformed request ends the connection, as if the client were gone.
            with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                frame = await self._frames.receive()
                order = None if frame is None else decode_order(frame)
            assert self._job is not None
            if order == "savepoint":
                self._job.savepoint()
            else:
                self._stop(nursery)
            if order is None:
                nursery.start_soon(self._report_orphan)
                return

    async def _report_orphan(self) -> None:
        """Name the processes that are left for a while, where a function does not return."""
        assert self._job is not None
        await trio.sleep(ORPHAN_SECONDS)
        if not self._ended:
            seconds = self._job.config.stop_timeout_seconds
            text = (
                f"the program of job {self._job.config.name!r} is gone, and the job ends within "
                f"{seconds:g} s; it is in the JobManager (pid {os.getpid()}) and in the workers "
                f"(pids {', '.join(map(str, self._workers))})"
            )
            print(text, file=sys.stderr, flush=True)

    async def _watch_signals(self, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self._stop(nursery)

    def _stop(self, nursery: trio.Nursery) -> None:
        assert self._job is not None
        self._job.stop()
        if self._ended:
            # The client may be one that does not read, and nobody else waits for this process.
            self._telling.deadline = min(
                self._telling.deadline, trio.current_time() + LEAVE_SECONDS
            )
        nursery.start_soon(self._stop_in_time)

    async def _stop_in_time(self) -> None:
        assert self._job is not None
        await trio.sleep(self._job.config.stop_timeout_seconds)
        self._stop_scope.cancel()

    async def _tell_status(self) -> None:
        assert self._job is not None
        while True:
            await trio.sleep(STATUS_SECONDS)
            if self._ended:
                # What tells the end is the last that a client hears.
                return
            if self._outbox:
                # A client that does not read shall not have to read all of them before the end.
                continue
            self.observe(
                {
                    "event": "status",
                    "operators": self._job.metrics.operators(),
                    "loops": self._job.metrics.loops(),
                    "busy_workers": self._job.busy_workers(),
                }
            )


async def _serve(descriptor: int) -> int:
    connection = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
    with ProcessLogging("JobManager") as logs:
        return await JobServer(Frames(trio.SocketStream(connection)), logs=logs).run()


def main() -> None:
    """Serve the client at the other end of the descriptor that is the only argument."""
    # What was imported is not gone through again at each full pass for cycles.
    gc.freeze()
    watch_forks()
    refuse_breakpoints()
    with running_as("a JobManager"):
        code = trio.run(_serve, int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
