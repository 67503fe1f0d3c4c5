"""Check that records have timestamps where an operator needs them."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorKind
from penstock.dataflow.windows import CountSlidingWindowAssigner, CountTumblingWindowAssigner

__all__ = ["check_event_time", "gives_timestamps"]


_EVENT_TIME_ONLY = (OperatorKind.KEYED_CO_INTERVAL_JOIN, OperatorKind.KEYED_CO_AS_OF_JOIN)
_WINDOWS = (
    OperatorKind.KEYED_WINDOW,
    OperatorKind.KEYED_CO_WINDOW,
    OperatorKind.KEYED_COLUMNS,
)


def check_event_time(graph: JobGraph) -> None:
    """Check that something gives timestamps to the records of each operator that needs them.

    These are event-time windows and joins, and functions of Penstock with the attribute
    `needs_event_time`.
    Only windows and sources of Penstock are checked: a user-defined source may know timestamps.

    Raises:
        GraphError: if no operator before such an operator gives timestamps.
    """
    for operator in graph.running:
        if not _needs_timestamps(operator):
            continue
        edges = graph.inputs_of(operator.id)
        for input in sorted({edge.input for edge in edges}):
            before = graph.upstream(edge.source for edge in edges if edge.input == input)
            if any(gives_timestamps(one) for one in graph.running if one.id in before):
                continue
            records = "its records"
            if operator.kind.has_two_inputs:
                records = f"the records of its {'second' if input else 'first'} stream"
            alternative = (
                ", or use processing time" if operator.kind not in _EVENT_TIME_ONLY else ""
            )
            raise GraphError(
                f"operator {operator.name!r} needs event time, and no operator before it gives "
                f"{records} timestamps: call assign_timestamps_and_watermarks("
                f"WatermarkStrategy....with_timestamp_assigner(...)) before it{alternative}"
            )


def _needs_timestamps(operator: Operator) -> bool:
    if operator.kind not in _WINDOWS:
        return getattr(operator.function, "needs_event_time", False) is True
    assigner = operator.function.assigner
    if assigner is None:
        return False
    return bool(assigner.is_event_time()) and type(assigner).__module__.startswith("penstock.")


def gives_timestamps(operator: Operator) -> bool:
    """Return whether an operator gives timestamps to the records that it emits."""
    if operator.kind is OperatorKind.TIMESTAMPS_AND_WATERMARKS:
        return operator.function.extract_timestamp is not None
    if operator.kind is OperatorKind.SOURCE:
        strategy = operator.watermark_strategy
        if strategy is not None and strategy.extract_timestamp is not None:
            return True
        if getattr(operator.function, "has_event_times", False):
            return True
        return not type(operator.function).__module__.startswith("penstock.connectors")
    if operator.kind is OperatorKind.MAP_BATCHES:
        return operator.function.timestamps is not None
    if operator.kind not in _WINDOWS:
        return False
    assigner = operator.function.assigner
    # A window by count has the time of the record that fills it, if the record has one.
    by_count = isinstance(assigner, CountTumblingWindowAssigner | CountSlidingWindowAssigner)
    return assigner is not None and not by_count
