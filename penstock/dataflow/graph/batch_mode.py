"""Prepare a program for batch mode: bounded input, and final results only.

`docs/guides/batch.md` is the guide. (Flink: `StreamGraphGenerator` with
`RuntimeExecutionMode.BATCH`.)
"""

from __future__ import annotations

from dataclasses import replace

from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator
from penstock.dataflow.operators.specs import without_watermarks


def in_runtime_mode(graph: JobGraph, config: JobConfig) -> tuple[JobGraph, JobConfig]:
    """Return a program and its settings, prepared for the mode in which the program runs.

    In batch mode there are no watermarks before the end of the input and no periodic snapshots.
    Functions are replaced by those that `OperatorSpec.in_batch_mode` returns.

    Raises:
        GraphError: if the program cannot run in batch mode.
    """
    if config.runtime_mode is RuntimeExecutionMode.STREAMING:
        return graph, config
    loops = [one.name for one in graph.operators if one.spec.is_feedback]
    unbounded = [one for one in graph.operators if _is_unbounded(one)]
    if config.runtime_mode is RuntimeExecutionMode.AUTOMATIC and (loops or unbounded):
        return graph, replace(config, runtime_mode=RuntimeExecutionMode.STREAMING)
    if unbounded:
        names = " and ".join(f"{one.name!r} ({type(one.function).__name__})" for one in unbounded)
        are = "are" if len(unbounded) > 1 else "is"
        raise GraphError(
            f"batch mode needs bounded input, and {names} {are} unbounded: give each source an "
            f"end, or run the program in streaming mode (RuntimeExecutionMode.STREAMING, or "
            f"--runtime-mode streaming)"
        )
    if loops:
        raise GraphError(
            f"batch mode has no loops, and the program has {', '.join(map(repr, loops))}: run it "
            f"in streaming mode, in which a loop also ends with its input"
        )
    settings = replace(
        config,
        runtime_mode=RuntimeExecutionMode.BATCH,
        checkpoint_interval_seconds=None,
        checkpointing_mode=CheckpointingMode.NONE,
        auto_watermark_interval_seconds=0.0,
    )
    return JobGraph(list(map(_prepared, graph.operators)), graph.edges), settings


def _is_unbounded(operator: Operator) -> bool:
    return operator.spec.is_source and not operator.function.ends


def _prepared(operator: Operator) -> Operator:
    """Return an operator as it runs in batch mode."""
    if operator.watermark_strategy is not None:
        strategy = without_watermarks(operator.watermark_strategy)
        return replace(operator, watermark_strategy=strategy)
    in_batch_mode = operator.spec.in_batch_mode
    if in_batch_mode is None:
        return operator
    return replace(operator, function=in_batch_mode(operator.function))
