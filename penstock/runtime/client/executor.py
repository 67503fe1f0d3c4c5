"""Executors: what `execute()` does in the process of the program.

They pack the program, start a JobManager for it, and pass on the events that it reports. This is
blocking code without an event loop, since the program may have one of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import GraphError, PenstockError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.program import (
    CloseableIterator,
    JobExecutionResult,
    Program,
    RunOptions,
    current_options,
)
from penstock.runtime.client.job_connection import JobConnection, JobProcess
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.runtime.client.stop_signals import StopSignals, kill_at_second_interrupt
from penstock.runtime.control.framing import MAX_FRAME
from penstock.runtime.control.job_code import JobCode, pack
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.control.requests import JobRequest, encode_job
from penstock.runtime.operators.collect_sink import CollectSink, read_committed
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.user_code.process_logging import program_logging
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

__all__ = ["LocalExecutor", "job_request"]


def job_request(
    program: Program, options: RunOptions, collecting: bool = False, shown: bool = False
) -> bytes:
    """Return the first frame to a JobManager: the job's code and its options.

    Arguments:
        program: the program to run.
        options: how to run it.
        collecting: the program's records are read while it runs.
        shown: the client shows the progress on the standard error that the job writes to.

    Raises:
        GraphError: if there is no checkpoint folder to resume from, or if the program with all
            that it refers to is too large.
    """
    if options.resume is not None and program.config.checkpoint_dir is None:
        raise GraphError("there is nothing to resume from: give a folder with --checkpoint-dir")
    types = record_classes(program.graph, program.types)
    logs = program_logging(program.config.log_level)
    code = JobCode(program.graph, program.config, types=types, logging=logs)
    settings = {
        "resume": options.resume,
        "fork": options.fork,
        "allow_dropped": options.allow_dropped,
        "collecting": collecting,
        "shown": shown,
    }
    job = JobRequest(pack(code), list(code.search_path), program.config.host, settings)
    request = encode_job(job)
    if len(request) > MAX_FRAME:
        raise GraphError(
            f"the program with all that its functions refer to has {len(request):,} bytes, and the "
            f"limit is {MAX_FRAME:,}: read large data in open() or from a source"
        )
    return request


class LocalExecutor:
    """Runs programs with a JobManager and workers on this machine, each a process of its own.

    Subclasses start the JobManager elsewhere.
    """

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Start the JobManager of a program.

        Arguments:
            program: the program to run.
            options: how to run it.
            collecting: the program's records are read while it runs.
        """
        shown = options.progress is not None
        return JobProcess(job_request(program, options, collecting, shown))

    def execute(self, program: Program) -> JobExecutionResult:
        """Run a program to its end."""
        with prepared_sources(program, current_options()):
            return self._execute(program)

    def _execute(self, program: Program) -> JobExecutionResult:
        options = current_options()
        began = time.perf_counter()
        job = self.start(program, options)
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
        return result

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Run a program, and iterate over the records of some of its outputs."""
        options = current_options()
        began = time.perf_counter()
        with ExitStack() as stack:
            spool = TemporaryFolder("collect")
            stack.callback(spool.remove)
            program.add_sink("Collect", outputs, CollectSink(str(spool.path)))
            compile_graph(program.graph, program.config)
            stack.enter_context(prepared_sources(program, options))
            job = self.start(program, options, collecting=True)
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
    """Yield the records that a running job commits to a folder; raise what it fails with."""
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
