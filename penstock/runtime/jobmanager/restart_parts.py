"""Choose which parts of a job restart alone, and note settings of restarts that have no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.config.start_method import StartMethod
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.regions import divide
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.attempt.watermark_alignment import watermark_groups
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note
from penstock.runtime.system.system import System

Observe = Callable[[JobEvent], None]


def choose_regions(
    code: JobCode, plan: ExecutionGraph, keep: bool, system: System, observe: Observe
) -> tuple[ExecutionGraph, ...]:
    """Return the regions of a job that restart alone, or its whole graph as the only one.

    If single tasks can restart, each task of the regions has a slot of its own.

    Arguments:
        code: the job's code, with its configuration.
        plan: the execution graph.
        keep: whether the job's snapshots hold state.
        system: starts the workers.
        observe: called with a note if the job is to restart in smaller parts than it can.
    """
    scope = code.config.restart_scope
    if scope is RestartScope.JOB:
        return (plan,)
    groups = watermark_groups(code, plan)
    regions = divide(plan, {chain: name for chain, (name, _) in groups.items()})
    reason: str | None
    if not keep:
        reason = "its snapshots hold no state"
    elif system.workers_start_together:
        reason = "Spark starts all workers together"
    elif scope is RestartScope.TASK and not (why := _why_no_single_tasks(code, plan, groups)):
        return tuple(replace(region, isolated=True) for region in regions)
    elif len(regions) == 1:
        reason = why if scope is RestartScope.TASK else "all of its tasks are connected"
    else:
        if scope is RestartScope.TASK:
            observe(Note(f"restart_scope is task, but regions restart as a whole: {why}"))
        return regions
    observe(Note(f"restart_scope is {scope.value}, but the job restarts as a whole: {reason}"))
    return (plan,)


def _why_no_single_tasks(
    code: JobCode, plan: ExecutionGraph, groups: Mapping[int, object]
) -> str | None:
    """Return why no task of a job can restart alone; None if some can."""
    config = code.config
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return "it runs in batch mode"
    if config.checkpointing_mode is not CheckpointingMode.EXACTLY_ONCE:
        return f"the checkpointing mode is {config.checkpointing_mode.value}"
    if plan.loops:
        return "it has a loop"
    if groups:
        return "its sources align their watermarks"
    if config.restart_reactive:
        return "restart_reactive changes the number of its workers"
    return None


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
