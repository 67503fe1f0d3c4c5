"""Run a job file as Python would, with the options of the command line.

The file runs as the module `__main__`. It gets its own arguments, and its folder is the first entry
of `sys.path`. If the file raises an exception, the command prints a message and returns an exit
code. Tracebacks are printed without the frames of Penstock, which do not help the file's author.
"""

from __future__ import annotations

import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.options import JobOptions, print_message
from penstock.cli.progress import Progress
from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.base_environment import local_executor
from penstock.dataflow.config import RuntimeExecutionMode, log_level_number
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.errors import GraphError, JobError, PenstockError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.job_client import AsyncExecutor, JobClient, end_job, unseen_error
from penstock.dataflow.program import (
    CloseableIterator,
    Executor,
    JobExecutionResult,
    Program,
    RunOptions,
    run_options,
)
from penstock.dataflow.tracebacks import add_advice, ends_in_engine, shortened
from penstock.dataflow.unexecuted import take_reports
from penstock.runtime.client.stop_signals import handling_signals
from penstock.snapshot.storage.job_paths import JobPaths

if TYPE_CHECKING:
    from penstock.runtime.client.job_connection import JobConnection

    Watch = Callable[[Program, JobConnection], JobConnection]


class Detached(SystemExit):
    """Ends the command `submit`, while the submitted job continues to run.

    It is raised after a message has informed the user.
    """


class MonitoredExecutor:
    """Delegates programs to another executor, and shows their progress.

    Arguments:
        executor: the executor that runs the programs. With None, each program runs in its local
            executor.
        progress: shows the running job.
        name: the name for each program's job. With None, the program's own name is used.
        watch: the attribute of `LocalExecutor`.
    """

    def __init__(
        self,
        executor: Executor | None,
        progress: Progress,
        name: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._executor = executor
        self._watch = watch
        self._progress = progress
        self._name = name
        self._records: list[CloseableIterator] = []
        self._clients: list[JobClient] = []
        #: Whether the job file has executed a program.
        self.executed = False
        #: The checkpoint folder from which the user can resume the last program; None if it has
        #: none.
        self.folder: Path | None = None
        #: Whether the last program runs in batch mode.
        self.batch = False

    def execute(self, program: Program) -> JobExecutionResult:
        """Run a program to its end, and return its result."""
        executor = self._begin(program)
        with self._progress.showing(printing=_prints(program)):
            return executor.execute(program)

    def submit(self, program: Program) -> JobClient:
        """Start a program, and return a client that controls its job."""
        executor = self._begin(program)
        if not isinstance(executor, AsyncExecutor):
            raise GraphError("execute_async cannot be used here; call execute()")
        client = executor.submit(program)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """Begin to stop the jobs of `execute_async`, which the process then waits for."""
        for client in self._clients:
            end_job(client)

    def wait(self) -> None:
        """Wait for the jobs of `execute_async`; raise the first error that the file ignores.

        The others are printed.
        """
        errors = [error for error in map(unseen_error, self._clients) if error is not None]
        for other in errors[1:]:
            print_message(f"Error: {other}")
        if errors:
            raise errors[0]

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Run a program, and return an iterator over the records of the given outputs."""
        records = self._begin(program).collect(program, outputs)
        self._records.append(records)

        def shown() -> Iterator[Any]:
            with self._progress.showing(printing=True):
                yield from records

        return CloseableIterator(shown(), records.close)

    @property
    def has_snapshot(self) -> bool:
        """Whether the last program has completed a snapshot, or was restored from one."""
        return self._progress.last_snapshot is not None

    def close(self) -> None:
        """Stop all jobs whose records the job file has not read to the end."""
        for records in self._records:
            records.close()

    def _begin(self, program: Program) -> Executor:
        self.executed = True
        self.batch = program.config.runtime_mode is RuntimeExecutionMode.BATCH
        folder = program.config.checkpoint_dir
        self.folder = None if folder is None or self.batch else Path(folder).absolute()
        if self._name is not None:
            program.config.name = self._name
        executor = self._executor or local_executor(program.config)
        if self._watch is not None:
            # Imported late, because it imports modules of Python. The job file may have the name of
            # one, and `local_executor` explains that.
            from penstock.runtime.client.executor import LocalExecutor

            if isinstance(executor, LocalExecutor):
                executor.watch = self._watch
        return executor


def _prints(program: Program) -> bool:
    from penstock.connectors import PrintSink

    return any(isinstance(operator.function, PrintSink) for operator in program.graph.operators)


def run_job(
    options: JobOptions, executor: Executor | None = None, watch: Watch | None = None
) -> int:
    """Run a job file, and return the exit code.

    The exit code is 0 after success, and 1 after an error, which is printed on standard error. It
    is 130 if SIGINT stopped the job, and 143 if SIGTERM stopped it. If the file calls `sys.exit`
    with another code, that code is returned.

    Arguments:
        options: the options of the command line.
        executor: the executor that runs the file's programs. With None, each program runs in its
            local executor.
        watch: the attribute of `LocalExecutor`.
    """
    shown = options.progress
    if options.in_process and shown == "auto":
        shown = "plain"  # A live view would overwrite the prompt of a debugger.
    progress = Progress(shown, options.resume is not None)
    monitored = MonitoredExecutor(executor, progress, options.name, watch)
    mode, lost = options.runtime_mode, options.on_lost_position
    claim = options.claim_mode
    settings = RunOptions(
        parallelism=options.parallelism,
        checkpoint_dir=options.checkpoint_dir,
        checkpoint_interval_seconds=options.checkpoint_interval,
        resume=options.resume,
        fork=options.fork,
        allow_dropped=options.allow_dropped,
        sink_markers=options.markers(),
        report=options.report,
        executor=monitored,
        progress=progress,
        in_process=options.in_process or None,
        on_lost_position=None if lost is None else LostPosition(lost),
        claim_mode=None if claim is None else RecoveryClaimMode(claim),
        log_level=None if options.log_level is None else log_level_number(options.log_level),
        job_parameters=options.job_parameters(),
        runtime_mode=None if mode is None else RuntimeExecutionMode[mode.upper()],
        python_files=options.py_files,
        python_archives=options.py_archives,
        python_requirements=options.py_requirements,
        python_executable=options.py_executable,
        install_requirements=options.install_requirements or None,
        supervise=options.supervise,
    )
    path = job_file(options.job)
    if path is None:
        return 1
    try:
        with run_options(settings), _terminable():
            try:
                with _main_module(path, options.args, options.py_files):
                    try:
                        runpy.run_path(str(path), run_name="__main__")
                    except SystemExit as exit:
                        # A file may end with sys.exit(main()) while its jobs run.
                        if exit.code in (None, 0):
                            monitored.wait()
                        raise
                    monitored.wait()
            finally:
                monitored.close()
    except KeyboardInterrupt:
        return _stopped(options, monitored, 130)
    except SystemExit as exit:
        return _exited(exit, options, monitored)
    except PenstockError as error:
        report_error(error, path)
        if monitored.folder is not None and monitored.has_snapshot:
            print_message(_how_to_resume(options, monitored))
        return 1
    except BaseException as error:
        return _failed(error, options)
    return _ended(options, monitored)


def job_file(job: str) -> Path | None:
    """Return the path of a job file; None after a message if there is no such file."""
    path = Path(job).absolute()
    if path.is_file():
        return path
    if path.is_dir():
        print_message(f"Error: {job} is a folder; name the job's Python file")
    else:
        print_message(f"Error: there is no job file {job} [{path}]")
    return None


@contextmanager
def _main_module(path: Path, args: tuple[str, ...], files: str | None) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` for the job file, and restore them afterwards.

    The job file can import the files that `--py-files` names, as its workers can.
    """
    argv, search = sys.argv, list(sys.path)
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(path.resolve().parent))
    for name in (files or "").split(","):
        file = Path(without_scheme(name.strip())).expanduser().resolve()
        if name.strip():
            sys.path.append(str(file.parent if file.suffix == ".py" else file))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search


@contextmanager
def _terminable() -> Iterator[None]:
    """While the block runs, raise `SystemExit` if the process receives SIGTERM."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    with handling_signals([signal.SIGTERM], end):
        yield


def _exited(exit: SystemExit, options: JobOptions, executor: MonitoredExecutor) -> int:
    code = exit.code
    if code == 143 and not isinstance(exit, Detached):
        return _stopped(options, executor, 143)
    if code is None:
        return _ended(options, executor)
    if not isinstance(code, int):
        print_message(str(code))
        return 1
    if code == 0 and not executor.executed:
        # The job file may have printed its help. No job has run, but that is not an error.
        print_message(f"note: {options.job} ended by itself before it executed anything")
    return code


def _stopped(options: JobOptions, executor: MonitoredExecutor, code: int) -> int:
    executor.stop()
    if executor.folder is not None:
        print_message(f"stopped; {_how_to_resume(options, executor)}")
    elif executor.batch:
        print_message("stopped; a job in batch mode publishes nothing before its end")
    elif executor.executed:
        print_message("stopped; without --checkpoint-dir there is nothing to resume from")
    else:
        print_message("stopped")
    return code


def _how_to_resume(options: JobOptions, executor: MonitoredExecutor) -> str:
    """Return the command that resumes the job, or a text that says why it cannot be resumed."""
    folder = executor.folder
    if executor.has_snapshot and folder is not None and not JobPaths(folder).job.exists():
        # A resume in a new folder would begin from the start, into the same output.
        return f"there is nothing to resume from: the checkpoint folder {folder} is gone"
    return f"resume with: {options.resume_command()}"


def _ended(options: JobOptions, executor: MonitoredExecutor) -> int:
    if executor.executed:
        for report in take_reports():
            print_message(report)
        return 0
    print_message(
        f"Error: {options.job} has run, but executed nothing: it must call env.execute(), or "
        f"execute_and_collect() on a stream"
    )
    return 1


def report_error(error: PenstockError, path: Path) -> None:
    """Print an error of a job or of its job file. The traceback of the user comes first."""
    if isinstance(error, JobError):
        if error.user_traceback:
            print_message(error.user_traceback.rstrip())
        print_message(f"Error: {error.message}")
        for what, value in (("operator", error.operator), ("record", error.record)):
            if value is not None:
                print_message(f"  {what + ':':9} {value}")
        return
    print_message(f"Error: {error}")
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    if isinstance(error, GraphError) and lines:
        print_message(f"  in {path}, line {lines[-1]}")


def _failed(error: BaseException, options: JobOptions) -> int:
    """Print an error that is none of Penstock's own kinds, and return the exit code."""
    add_advice(error, options.job)
    with shortened(error):
        shown = traceback.TracebackException.from_exception(error)
    _remove_frames_of_runpy(shown)
    print_message("".join(shown.format()).rstrip())
    print_message(f"Error: {options.job} failed before its job was done; the error is its own")
    if ends_in_engine(error):
        print_message("  PENSTOCK_TRACEBACK=full shows where in Penstock it was raised")
    return 1


def _remove_frames_of_runpy(shown: traceback.TracebackException | None) -> None:
    """Remove the frames through which Python runs the job file, also in causes."""
    if shown is None:
        return
    shown.stack[:] = [frame for frame in shown.stack if not _is_of_runpy(frame.filename)]
    _remove_frames_of_runpy(shown.__cause__)
    _remove_frames_of_runpy(shown.__context__)


def _is_of_runpy(filename: str) -> bool:
    return filename.startswith(("<frozen runpy>", "<frozen importlib")) or (
        filename == runpy.__file__
    )
