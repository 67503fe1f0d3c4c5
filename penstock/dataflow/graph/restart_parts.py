"""Decide which parts of a job restart alone, and count the workers that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.graph.partial_restart import chains_to_log
from penstock.dataflow.graph.regions import divide, watermark_groups


@dataclass(frozen=True)
class RestartParts:
    """The parts of a job that restart alone.

    Arguments:
        regions: the regions, or the whole graph as the only one.
        note: why the job restarts in larger parts than its program asks for; None if it does not.
    """

    regions: tuple[ExecutionGraph, ...]
    note: str | None = None

    @property
    def slots(self) -> int:
        """The number of workers of the job: regions share none."""
        return sum(region.slots for region in self.regions)

    @property
    def scope(self) -> RestartScope:
        """The scope of restarts that the job really has."""
        if self.regions[0].isolated:
            return RestartScope.TASK
        return RestartScope.REGION if len(self.regions) > 1 else RestartScope.JOB


def restart_parts(
    graph: JobGraph,
    config: JobConfig,
    plan: ExecutionGraph,
    *,
    keep: bool | None = None,
    together: bool = False,
) -> RestartParts:
    """Return the parts of a job that restart alone.

    If single tasks can restart, each task of the regions has a slot of its own.

    Arguments:
        graph: the job graph, which has the watermark strategies of the sources.
        config: the configuration of the job.
        plan: the execution graph.
        keep: whether the job's snapshots hold state; None if only the configuration decides.
        together: whether all workers start together, as on Spark.

    Example:
        >>> from penstock import StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> env.config.restart_scope = RestartScope.TASK
        >>> _ = env.set_parallelism(2).enable_checkpointing(200)
        >>> _ = env.from_sequence(1, 9).key_by(lambda n: n % 2).count().print()
        >>> plan = compile_graph(env._graph, env.config)
        >>> plan.slots, restart_parts(env._graph, env.config, plan).slots
        (2, 4)
    """
    scope = config.restart_scope
    if scope is RestartScope.JOB:
        return RestartParts((plan,))
    groups = watermark_groups(graph, plan)
    regions = divide(plan, {chain: name for chain, (name, _) in groups.items()})
    reason: str | None
    if not (config.keeps_state if keep is None else keep):
        reason = "its snapshots hold no state"
    elif together:
        reason = "Spark starts all workers together"
    elif scope is RestartScope.TASK and not (why := _why_no_single_tasks(config, groups)):
        return RestartParts(tuple(_isolated(region, config) for region in regions))
    elif len(regions) == 1:
        reason = why if scope is RestartScope.TASK else "all of its tasks are connected"
    elif scope is RestartScope.TASK:
        return RestartParts(
            regions, f"restart_scope is task, but regions restart as a whole: {why}"
        )
    else:
        return RestartParts(regions)
    note = f"restart_scope is {scope.value}, but the job restarts as a whole: {reason}"
    return RestartParts((plan,), note)


def _why_no_single_tasks(config: JobConfig, groups: Mapping[int, object]) -> str | None:
    """Return why no task of a job can restart alone; None if some can."""
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return "it runs in batch mode"
    if config.checkpointing_mode is not CheckpointingMode.EXACTLY_ONCE:
        return f"the checkpointing mode is {config.checkpointing_mode.value}"
    if groups:
        return "its sources align their watermarks"
    if config.restart_reactive:
        return "restart_reactive changes the number of its workers"
    return None


def slot_counts(graph: JobGraph, config: JobConfig) -> list[list[int]]:
    """Return the number of workers of a job for each parallelism, as `slots_at` reads it.

    Which operators form a chain depends on the parallelism only where it equals that which the
    program gives to an operator of its own. Between two of these numbers, each further subtask adds
    the same number of workers.

    Arguments:
        graph: the job graph.
        config: the configuration of the job.

    Returns:
        Rows of three numbers, in order: the lowest parallelism of the row, the number of workers
        there, and how many more there are for each further subtask.

    Example:
        >>> from penstock import StreamExecutionEnvironment
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.from_sequence(1, 9).map(str).set_parallelism(3).print()
        >>> slot_counts(env._graph, env.config)
        [[1, 3, 0], [2, 3, 0], [3, 3, 0], [4, 4, 1]]
    """
    highest = config.max_parallelism
    # Some operators always run with parallelism 1.
    own = {1} | {operator.parallelism or 1 for operator in graph.running}
    firsts = sorted({one + after for one in own for after in (0, 1) if one + after <= highest})
    rows = []
    for first, following in zip(firsts, [*firsts[1:], highest + 1], strict=True):
        try:
            count = _slots(graph, config, first)
            more = _slots(graph, config, first + 1) - count if following - first > 1 else 0
        except GraphError:
            continue  # the program cannot run with this parallelism
        rows.append([first, count, more])
    return rows


def _slots(graph: JobGraph, config: JobConfig, parallelism: int) -> int:
    config = replace(config, parallelism=parallelism)
    return restart_parts(graph, config, compile_graph(graph, config)).slots


def slots_at(counts: Sequence[Sequence[int]], parallelism: int) -> int:
    """Return the number of workers of a job with a parallelism.

    Arguments:
        counts: the rows that `slot_counts` has returned. Without a row, the number is the
            parallelism.
        parallelism: the parallelism.

    Example:
        >>> [slots_at([[1, 3, 0], [3, 3, 0], [4, 4, 1]], parallelism) for parallelism in (2, 3, 6)]
        [3, 3, 6]
    """
    rows = [row for row in counts if row[0] <= parallelism]
    if not rows:
        return parallelism
    first, count, more = rows[-1]
    return count + (parallelism - first) * more


def _isolated(region: ExecutionGraph, config: JobConfig) -> ExecutionGraph:
    """Return a region in which each task has a slot of its own.

    Tasks log their steps if this lets more of the others continue. Only snapshots shorten the logs,
    so there are none without them.
    """
    takes_snapshots = config.checkpoint_interval_seconds is not None
    logged = chains_to_log(region) if takes_snapshots else frozenset[int]()
    return replace(region, isolated=True, logged=logged)
