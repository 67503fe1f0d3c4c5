"""The client: what `execute()` does in the process of the program.

It packs the program, starts a JobManager process for it, and passes on what that says. Blocking
code and no event loop, since the program may have one of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.dataflow.environment import (
    JobExecutionResult,
    Program,
    RunOptions,
    current_options,
)
from penstock.dataflow.errors import GraphError, PenstockError, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.stream import CloseableIterator, DataStream
from penstock.runtime.client.job_connection import JobConnection, SocketConnection
from penstock.runtime.client.restart_reports import RestartReports
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.runtime.client.stop_signals import StopSignals, kill_at_second_interrupt
from penstock.runtime.control.failures import recreate
from penstock.runtime.control.framing import MAX_FRAME
from penstock.runtime.control.job_code import JobCode, pack, record_classes
from penstock.runtime.control.requests import JobRequest, encode_job
from penstock.runtime.operators.collect_sink import CollectSink, read_committed
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.children import child_command
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.user_code.process_logging import program_logging
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

__all__ = ["JobProcess", "LocalExecutor", "job_request"]


def job_request(
    program: Program, options: RunOptions, collecting: bool = False, shown: bool = False
) -> bytes:
    """Return the first frame to a JobManager process: the job's code and how to run it.

    Arguments:
        program: what to run.
        options: how.
        collecting: the program's results are read while it runs.
        shown: the client shows the progress on the standard error that the job writes to.
    """
    if options.resume is not None and program.config.checkpoint_dir is None:
        raise GraphError("there is nothing to resume from: give a folder with --checkpoint-dir")
    types = record_classes(program.graph, program.types)
    logs = program_logging(program.config.log_level)
    code = JobCode(program.graph, program.config, types=types, logging=logs)
    how = {
        "resume": options.resume,
        "fork": options.fork,
        "allow_dropped": options.allow_dropped,
        "collecting": collecting,
        "shown": shown,
    }
    request = encode_job(JobRequest(pack(code), list(code.search_path), program.config.host, how))
    if len(request) > MAX_FRAME:
        raise GraphError(
            f"the program with all that its functions refer to has {len(request):,} bytes, and the "
            f"limit is {MAX_FRAME:,}: read large data in open() or from a source"
        )
    return request


class JobProcess(SocketConnection):
    """A JobManager process and the connection to it.

    Arguments:
        request: from `job_request`.
        output: where its standard output and error go; None for this process's.
    """

    def __init__(self, request: bytes, output: Any = None) -> None:
        # Its processes have the limits of this one; where they are too low, little can be said.
        require_open_files(PROCESS_FILES)
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                child_command("penstock.runtime.jobmanager.process", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C at the terminal is for this process, which stops the job in order.
                start_new_session=True,
            )
        super().__init__(ours, request)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def wait(self) -> str:
        """Wait until the process has ended, and return how."""
        code = self.process.wait()
        self._socket.close()
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


class LocalExecutor:
    """Runs programs with a JobManager process and workers on this machine."""

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Start the JobManager of a program.

        Arguments:
            program: what to run.
            options: how.
            collecting: the program's results are read while it runs.
        """
        shown = options.progress is not None
        if program.config.in_process:
            from penstock.runtime.minicluster.minicluster import InProcessJob, in_process_program

            program = in_process_program(program)
            return InProcessJob(job_request(program, options, collecting, shown))
        return JobProcess(job_request(program, options, collecting, shown))

    def execute(self, program: Program) -> JobExecutionResult:
        """Run a program to its end."""
        with prepared_sources(program, current_options()):
            return self._execute(program)

    def _execute(self, program: Program) -> JobExecutionResult:
        options = current_options()
        began = time.perf_counter()
        process = self.start(program, options)
        monitor = JobMonitor(program, options, began)
        signals = StopSignals(process.stop, process.kill, options.progress)
        with signals.handled():
            try:
                for event in process.events():
                    monitor.handle(event)
            except BaseException:
                # What is told about progress failed; the job must not go on without its client.
                process.stop()
                process.drain()
                raise
            finally:
                ended = process.wait()
        try:
            result = monitor.result(ended)
        except PenstockError:
            if signals.killed and not monitor.ended:
                signals.end_program()
            raise
        signals.end_program()
        return result

    def collect(self, program: Program, stream: DataStream) -> CloseableIterator:
        """Run a program and iterate over the records of one stream."""
        spool = TemporaryFolder("collect")
        options = current_options()
        began = time.perf_counter()
        cleanup = ExitStack()
        cleanup.callback(spool.remove)
        try:
            program.collect(stream, CollectSink(str(spool.path)))
            compile_graph(program.graph, program.config)
            cleanup.enter_context(prepared_sources(program, options))
            process = self.start(program, options, collecting=True)
        except BaseException:
            cleanup.close()
            raise
        monitor = JobMonitor(program, options, began)
        folder = spool.path
        types = record_classes(program.graph, program.types)

        def records() -> Iterator[Any]:
            codec = Codec(TypeRegistry(types))
            for event in process.events():
                monitor.handle(event)
                if event["event"] == "types":
                    schemas = map(RecordSchema.from_wire, event["types"])
                    codec = Codec(TypeRegistry(types).extending(schemas))
                if event["event"] in ("committed", "finished"):
                    yield from read_committed(folder, codec)
            monitor.result(process.wait())

        def close() -> None:
            with cleanup:
                if process.running:
                    process.stop()
                    with kill_at_second_interrupt(process.kill):
                        process.drain()
                    process.wait()

        return CloseableIterator(_then(records(), cleanup.close), close)


def _then(records: Iterator[Any], cleanup: Callable[[], None]) -> Iterator[Any]:
    try:
        yield from records
    finally:
        cleanup()


class JobMonitor:
    """Follows the events of one job, and makes the result and the report of them.

    Arguments:
        program: what runs.
        options: where progress and the report go.
        began: `time.perf_counter()` at the start.
    """

    def __init__(self, program: Program, options: RunOptions, began: float) -> None:
        self._program = program
        self._options = options
        self._began = began
        self._last: dict[str, Any] | None = None
        self._restarts = RestartReports(shown=options.progress is not None)
        self.pids: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether the JobManager has reported how the job ended."""
        return self._last is not None

    def handle(self, event: dict[str, Any]) -> None:
        """Take an event."""
        kind = event["event"]
        if kind in ("finished", "failed"):
            self._last = event
        elif kind == "started":
            self.pids["jobmanager"] = event["pid"]
        elif kind == "workers":
            self.pids["workers"] = event["pids"]
        self._restarts.handle(event)
        if self._options.progress is not None:
            self._options.progress(event)

    def result(self, ended: str) -> JobExecutionResult:
        """The result of the job, whose process has ended. Raises what the job failed with."""
        wall = round(time.perf_counter() - self._began, 3)
        last = self._last or {
            "event": "failed",
            "family": "StoreError",
            "message": f"the JobManager process {ended}"
            + (
                "; the job can be resumed from its last snapshot with --resume"
                if self._program.config.checkpoint_dir
                else ""
            ),
        }
        try:
            self._write_report(last, wall)
        finally:
            # Also if the report cannot be written: why the job failed is what matters.
            if last["event"] == "failed":
                raise recreate(last)
        return JobExecutionResult(
            self._program.config.name,
            wall,
            last["restarts"],
            last["snapshots"],
            last["operators"],
            last["lineage"],
            last["stopped"],
            last["loops"],
            last["totals"],
        )

    def _write_report(self, last: dict[str, Any], wall: float) -> None:
        if self._options.report is None:
            return
        figures = last if last["event"] == "finished" else last.get("report", {})
        status = "failed"
        if last["event"] == "finished":
            status = "stopped" if last["stopped"] else "finished"
        report = {
            "job": self._program.config.name,
            "status": status,
            "error": last.get("message"),
            "wall_seconds": wall,
            "operators": figures.get("operators", []),
            "loops": figures.get("loops", []),
            "snapshots": figures.get("snapshots", []),
            "restarts": figures.get("restarts", []),
            "totals": figures.get("totals", {}),
            "lineage": figures.get("lineage"),
            "peak_worker_bytes": figures.get("peak_bytes", []),
            "pids": self.pids,
        }
        path = Path(self._options.report)
        try:
            _write_whole(path.resolve(), json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise StoreError(f"the report cannot be written: {error.strerror}", path) from error


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, for who waits for it."""
    if path.exists() and not path.is_file():
        path.write_text(text)  # a pipe, or a terminal
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
