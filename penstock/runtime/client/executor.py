"""Executors, which run programs for `execute()` in the process of the program.

An executor packs the program, starts a JobManager for it, and handles the events that the
JobManager reports. The code blocks and uses no event loop, since the program may have its own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import GraphError, PenstockError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.graph.restart_parts import restart_parts, slot_counts
from penstock.dataflow.job_client import JobClient
from penstock.dataflow.program import (
    CloseableIterator,
    JobExecutionResult,
    Program,
    RunOptions,
    current_options,
)
from penstock.runtime.client.job_connection import JobConnection, JobProcess
from penstock.runtime.client.job_follower import JobFollower
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.runtime.client.stop_signals import (
    StopSignals,
    end_program,
    kill_at_second_interrupt,
)
from penstock.runtime.client.supervised_job import SupervisedJob
from penstock.runtime.control.job_code import JobCode, pack
from penstock.runtime.control.packing import MAX_FRAME
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.control.requests import JobRequest, encode_job
from penstock.runtime.operators.collect_sink import CollectSink, read_committed
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.user_code.process_logging import program_logging
from penstock.runtime.user_code.python_files import pack_files
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder


def job_form(program: Program) -> dict[str, Any]:
    """Return what a `Submit` and an `Upgrade` say about a program besides its code.

    Raises:
        GraphError: if the program cannot run.
    """
    graph, config = program.graph, program.config
    plan = compile_graph(graph, config)
    return {
        "name": config.name,
        "folder": str(Path.cwd()),
        "parallelism": config.parallelism,
        "max_parallelism": config.max_parallelism,
        "slot_counts": slot_counts(graph, config),
        "restart_scope": restart_parts(graph, config, plan).scope.value,
    }


def job_request(
    program: Program, options: RunOptions, collecting: bool = False, shown: bool = False
) -> bytes:
    """Return the first frame for a JobManager: the code and the options of the job.

    Arguments:
        program: the program to run.
        options: the options of the run.
        collecting: whether the client reads output records while the job runs.
        shown: whether the client shows the progress on the standard error of the job.

    Raises:
        GraphError: if the job must resume but has no checkpoint folder, if a file for workers is
            missing, or if the program, the objects that it refers to and the files are too large
            for one frame.
    """
    if options.resume is not None and program.config.checkpoint_dir is None:
        raise GraphError("there is nothing to resume from: give a folder with --checkpoint-dir")
    if options.supervise and program.config.checkpoint_dir is None:
        raise GraphError(
            "a job without a checkpoint folder cannot go on after its JobManager has died: give "
            "--supervise a folder with --checkpoint-dir"
        )
    types = record_classes(program.graph, program.types)
    logs = program_logging(program.config.log_level)
    code = JobCode(program.graph, program.config, types=types, logging=logs)
    settings = {
        "resume": options.resume,
        "fork": options.fork,
        "allow_dropped": options.allow_dropped,
        "sink_markers": dict(options.sink_markers),
        "collecting": collecting,
        "shown": shown,
        "lineage": secrets.token_hex(8),
        "successor": False,
        "rejoin_address": "",
        "rejoin_token": b"",
        "python_files": pack_files(program.config),
        "python": None,
    }
    job = JobRequest(pack(code), list(code.search_path), program.config.host, settings)
    request = encode_job(job)
    if len(request) > MAX_FRAME:
        raise GraphError(
            f"the program with all that its functions refer to, and with its Python files and "
            f"archives, has {len(request):,} bytes, and the limit is {MAX_FRAME:,}: read large "
            f"data in open() or from a source"
        )
    return request


class LocalExecutor:
    """Runs programs on this machine, in one process for each worker and JobManager.

    Subclasses override `start` to run the JobManager in another place.

    Attributes:
        watch: is called with each program and the connection to its job, and returns the connection
            to follow; None follows the job itself.
    """

    watch: Callable[[Program, JobConnection], JobConnection] | None = None

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Start the JobManager of a program, and return the connection to it.

        Arguments:
            program: the program to run.
            options: the options of the run.
            collecting: whether the client reads output records while the job runs.
        """
        shown = options.progress is not None
        request = job_request(program, options, collecting, shown)
        return SupervisedJob(request) if options.supervise else JobProcess(request)

    def execute(self, program: Program) -> JobExecutionResult:
        """Run a program to its end, and return the result of the job."""
        with prepared_sources(program, current_options()):
            return self._execute(program)

    def _execute(self, program: Program) -> JobExecutionResult:
        options = current_options()
        began = time.perf_counter()
        job = self._start(program, options)
        monitor = JobMonitor(program, options, began)
        signals = StopSignals(job.stop, job.kill, options.progress)
        with signals.handled():
            try:
                for event in job.events():
                    monitor.handle(event)
            except BaseException:
                # The progress callback failed. The job must not continue without its client.
                job.stop()
                job.drain()
                raise
            finally:
                how_ended = job.wait()
        try:
            result = monitor.result(how_ended)
        except PenstockError:
            if signals.killed and not monitor.ended:
                signals.end_program()
            raise
        signals.end_program()
        # Somebody may have stopped the JobManager itself. The rest of the program may need the
        # output of a finished job.
        end_program(monitor.signal)
        return result

    def _start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        job = self.start(program, options, collecting)
        return job if self.watch is None else self.watch(program, job)

    def submit(self, program: Program) -> JobClient:
        """Start a program, and return a client that controls its job."""
        options = current_options()
        began = time.perf_counter()
        with ExitStack() as stack:
            stack.enter_context(prepared_sources(program, options))
            job = self._start(program, options)
            cleanup = stack.pop_all()
        monitor = JobMonitor(program, options, began)
        config = program.config
        follower = JobFollower(
            secrets.token_hex(16), job, monitor, config.checkpoint_dir, cleanup, config.retention
        )
        return JobClient(follower)

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Run a program, and return an iterator over the records of the given outputs."""
        options = current_options()
        began = time.perf_counter()
        with ExitStack() as stack:
            spool = TemporaryFolder("collect")
            stack.callback(spool.remove)
            program.add_sink("Collect", outputs, CollectSink(str(spool.path)))
            compile_graph(program.graph, program.config)
            stack.enter_context(prepared_sources(program, options))
            job = self._start(program, options, collecting=True)
            cleanup = stack.pop_all()
        monitor = JobMonitor(program, options, began)
        types = TypeRegistry(record_classes(program.graph, program.types))
        records = _records(job, monitor, spool.path, types, cleanup)

        def close() -> None:
            with cleanup:
                if job.running:
                    job.stop()
                    with kill_at_second_interrupt(job.kill):
                        job.drain()
                    job.wait()

        return CloseableIterator(records, close)


def _records(
    job: JobConnection, monitor: JobMonitor, folder: Path, types: TypeRegistry, cleanup: ExitStack
) -> Iterator[Any]:
    """Yield the records that a running job commits to a folder.

    Raises the error of the job if the job fails.
    """
    with cleanup:
        codec = Codec(types)
        for event in job.events():
            monitor.handle(event)
            match event["event"]:
                case "types":
                    codec = Codec(types.extending(map(RecordSchema.from_wire, event["types"])))
                case "committed" | "finished":
                    yield from read_committed(folder, codec)
        monitor.result(job.wait())
        end_program(monitor.signal)
