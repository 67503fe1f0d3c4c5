"""Check that the records of event-time windows have timestamps."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorKind

__all__ = ["check_event_time"]


def check_event_time(graph: JobGraph) -> None:
    """Check that something gives timestamps to the records of each event-time window.

    Only windows and sources of Penstock are checked: a source of the program may know timestamps.

    Raises:
        GraphError: if no operator before an event-time window gives timestamps.
    """
    for operator in graph.running:
        if operator.kind is not OperatorKind.KEYED_WINDOW or not _needs_timestamps(operator):
            continue
        before = graph.upstream([operator.id]) - {operator.id}
        if not any(_gives_timestamps(one) for one in graph.running if one.id in before):
            raise GraphError(
                f"operator {operator.name!r} needs event time, and no operator before it gives its "
                f"records timestamps: call assign_timestamps_and_watermarks(WatermarkStrategy...."
                f"with_timestamp_assigner(...)) before it, or use processing-time windows"
            )


def _needs_timestamps(operator: Operator) -> bool:
    assigner = operator.function.assigner
    return bool(assigner.is_event_time()) and type(assigner).__module__.startswith("penstock.")


def _gives_timestamps(operator: Operator) -> bool:
    if operator.kind is OperatorKind.TIMESTAMPS_AND_WATERMARKS:
        return operator.function.extract_timestamp is not None
    if operator.kind is OperatorKind.SOURCE:
        strategy = operator.watermark_strategy
        if strategy is not None and strategy.extract_timestamp is not None:
            return True
        return not type(operator.function).__module__.startswith("penstock.connectors")
    # The results of a window have the last timestamp of the window.
    return operator.kind is OperatorKind.KEYED_WINDOW
