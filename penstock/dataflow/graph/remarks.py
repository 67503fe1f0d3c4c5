"""Find parts of a program that run and whose results are probably not what its author expects."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dataflow.config import JobConfig, RuntimeExecutionMode
from penstock.dataflow.graph.job_graph import JobGraph, OperatorKind
from penstock.dataflow.windows.time_triggers import ProcessingTimeTrigger

__all__ = ["unfinished_windows", "unread_streams"]


def unread_streams(graph: JobGraph) -> Iterator[str]:
    """Yield a sentence for each stream whose records are dropped."""
    for operator in graph.unread():
        yield (
            f"no sink and no other operator reads the stream of operator {operator.name!r}: its "
            f"records are dropped; end it with sink_to(...) or print()"
        )


def unfinished_windows(graph: JobGraph, config: JobConfig) -> Iterator[str]:
    """Yield a sentence for each window by processing time whose input ends.

    Such a window fires only while the job runs. As in Flink, a window that is open when the input
    ends never fires. In batch mode it does.
    """
    sources = [one for one in graph.operators if one.kind is OperatorKind.SOURCE]
    endless = {one.id for one in sources if not one.function.ends}
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return
    for operator in graph.operators:
        by_clock = isinstance(getattr(operator.function, "trigger", None), ProcessingTimeTrigger)
        if by_clock and not endless & graph.upstream({operator.id}):
            yield (
                f"the windows of {operator.name!r} fire by the clock, and their input ends: those "
                f"that are open then emit nothing. Use windows by event time, or batch mode"
            )
