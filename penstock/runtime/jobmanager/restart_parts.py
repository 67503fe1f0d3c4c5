"""Choose which parts of a job restart alone, and note settings of restarts that have no effect."""

from __future__ import annotations

from collections.abc import Callable

from penstock.dataflow.config import JobConfig
from penstock.dataflow.config.start_method import StartMethod
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.restart_parts import RestartParts, restart_parts
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.system import System

Observe = Callable[[JobEvent], None]


def choose_regions(
    code: JobCode, plan: ExecutionGraph, keep: bool, system: System, observe: Observe
) -> tuple[ExecutionGraph, ...]:
    """Return the regions of a job that restart alone, or its whole graph as the only one.

    Arguments:
        code: the job's code, with its configuration.
        plan: the execution graph.
        keep: whether the job's snapshots hold state.
        system: starts the workers.
        observe: called with a note if the job is to restart in smaller parts than it can.
    """
    parts = _parts(code, plan, keep, system)
    if parts.note is not None:
        observe(Note(parts.note))
    return parts.regions


def require_worker_files(code: JobCode, plan: ExecutionGraph, keep: bool, system: System) -> None:
    """Raise `JobError` if this process may open too few files for the workers of a job.

    Arguments:
        code: the job's code, with its configuration.
        plan: the execution graph.
        keep: whether the job's snapshots hold state.
        system: starts the workers.
    """
    parts = _parts(code, plan, keep, system)
    # Each worker needs descriptors for its process and for two connections: one for messages, and
    # one for heartbeats.
    require_open_files(PROCESS_FILES + 4 * parts.slots)


def _parts(code: JobCode, plan: ExecutionGraph, keep: bool, system: System) -> RestartParts:
    together = system.workers_start_together
    return restart_parts(code.graph, code.config, plan, keep=keep, together=together)


def note_standby(config: JobConfig, python: str | None, system: System, observe: Observe) -> None:
    """Say so if no processes can stand by, although the job wants some.

    Arguments:
        config: the configuration of the job.
        python: the interpreter of the workers; None stands for the JobManager's own.
        system: starts the workers.
        observe: called with the note.
    """
    forks = config.start_method is StartMethod.FORK and python is None
    if config.restart_standby and not (forks and system.stand_by is not None):
        observe(
            Note(
                "restart_standby has no effect: only forks on this machine can stand by, and this "
                "job's workers start in another way"
            )
        )
