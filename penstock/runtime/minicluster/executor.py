"""Run jobs inside the process of their program: `InProcessExecutor`."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from penstock.dataflow.config import RestartStrategies
from penstock.dataflow.errors import GraphError
from penstock.dataflow.program import Program, RunOptions
from penstock.runtime.client.executor import LocalExecutor, job_request
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.minicluster.minicluster import InProcessJob

#: An interval at which no periodic snapshot is ever taken, although snapshots are enabled.
_NEVER_SECONDS = 1e9
#: The number of restarts of a job whose source requests its snapshots.
_RESTARTS = 1_000


class InProcessExecutor(LocalExecutor):
    """Runs the JobManager and the workers of a program inside this process."""

    def start(
        self, program: Program, options: RunOptions, collecting: bool = False
    ) -> JobConnection:
        """Return a connection to a job in this process.

        The job starts when the client reads the first event from the connection.
        """
        if options.supervise:
            raise GraphError(
                "--supervise starts a JobManager process again that has died, and a job in this "
                "process has none: leave out set_in_process"
            )
        shown = options.progress is not None
        _check_interpreter(program.config.python_executable)
        program = _with_requested_snapshots(_without_timeouts(program))
        return InProcessJob(job_request(program, options, collecting, shown))

    def submit(self, program: Program) -> NoReturn:
        """Raise a `GraphError`: a job in this process runs only while the program waits for it."""
        del program
        raise GraphError(
            "execute_async starts processes: a job in this process runs only while the program "
            "waits for it; call execute(), or leave out set_in_process"
        )


def _check_interpreter(wanted: str | None) -> None:
    if wanted is None:
        return
    found = shutil.which(wanted)
    own = Path(sys.executable)
    # The interpreter of a virtual environment is a link to another one, in another folder.
    if (
        found is None
        or not Path(found).samefile(own)
        or not Path(found).parent.samefile(own.parent)
    ):
        raise GraphError(
            f"a job in this process runs on its interpreter, {sys.executable}: start the program "
            f"with {wanted}, or leave out set_python_executable"
        )


def _without_timeouts(program: Program) -> Program:
    """Return a copy of the program without timeouts for workers and snapshots.

    While the program waits at a breakpoint, the JobManager must not consider a worker lost or a
    snapshot failed.
    """
    config = replace(
        program.config,
        heartbeat_timeout_seconds=math.inf,
        checkpoint_timeout_seconds=math.inf,
        stop_timeout_seconds=math.inf,
    )
    return replace(program, config=config)


def _with_requested_snapshots(program: Program) -> Program:
    """Return a copy without periodic snapshots, if a source of the program requests snapshots.

    The job then restarts at once, unless the program has set a restart strategy.
    """
    operators = program.graph.operators
    sources = [one.function for one in operators if one.spec.is_source]
    if not any(source.requests_snapshots for source in sources):
        return program
    config = program.config
    restart = config.restart or RestartStrategies.fixed_delay_restart(_RESTARTS, 0)
    config = replace(config, checkpoint_interval_seconds=_NEVER_SECONDS, restart=restart)
    return replace(program, config=config)
