"""Check that records have timestamps, and that watermarks come, where an operator needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorKind
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.dataflow.windows import (
    ContinuousEventTimeTrigger,
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
)

__all__ = ["check_event_time", "check_watermarks", "gives_timestamps"]


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


def check_watermarks(graph: JobGraph, config: JobConfig) -> None:
    """Check that watermarks can come to each operator that waits for them.

    These are event-time windows with a trigger of event time, event-time joins, and functions of
    Penstock with the attribute `needs_event_time`. The lowest watermark of all inputs counts.
    A single endless input without watermarks holds back the watermark of all inputs.
    An input that ends has its last watermark then.

    Raises:
        GraphError: if no watermark can ever come to such an operator.
    """
    for operator in graph.running:
        if not _waits_for_watermarks(operator):
            continue
        sources = [edge.source for edge in graph.inputs_of(operator.id)]
        for one in _without_watermarks(graph, config, sources):
            raise GraphError(
                f"operator {operator.name!r} waits for watermarks, and none ever comes: "
                f"{_why(one)}, and its records never end. Give it a strategy with watermarks, such "
                f"as WatermarkStrategy.for_bounded_out_of_orderness(...)"
            )


def _waits_for_watermarks(operator: Operator) -> bool:
    if operator.kind not in _WINDOWS:
        return getattr(operator.function, "needs_event_time", False) is True
    function = operator.function
    operation = function.window if operator.kind is OperatorKind.KEYED_COLUMNS else function
    if operation is None or not operation.assigner.is_event_time():
        return False
    return _fires_by_watermarks(operation.trigger)


def _fires_by_watermarks(trigger: Trigger) -> bool:
    """Return whether only watermarks make a trigger fire. That of a user's class is not known."""
    if type(trigger) is PurgingTrigger:
        return _fires_by_watermarks(trigger.nested_trigger)
    return type(trigger) in (EventTimeTrigger, ContinuousEventTimeTrigger)


def _without_watermarks(
    graph: JobGraph, config: JobConfig, operators: Iterable[int]
) -> Iterator[Operator]:
    """Yield the endless operators that never emit a watermark.

    The search goes upstream, and ends at operators that emit watermarks of their own.
    """
    by_id = {operator.id: operator for operator in graph.operators}
    waiting, found = list(operators), set(operators)
    while waiting:
        operator = by_id[waiting.pop()]
        if _sets_watermarks(operator):
            if not _has_watermarks(operator, config) and _is_endless(graph, operator):
                yield operator
            continue
        new = {edge.source for edge in graph.inputs_of(operator.id)} - found
        found |= new
        waiting += new


def _sets_watermarks(operator: Operator) -> bool:
    """Return whether the watermarks behind an operator are its own."""
    return operator.kind in (OperatorKind.SOURCE, OperatorKind.TIMESTAMPS_AND_WATERMARKS)


def _has_watermarks(operator: Operator, config: JobConfig) -> bool:
    """Return whether an operator may emit watermarks, or does not hold back those of others."""
    strategy = _strategy(operator)
    if operator.kind is OperatorKind.SOURCE and operator.function.emits_watermarks:
        return True
    if strategy is None:
        return False
    if strategy.idle_timeout_ms is not None:
        return True
    if strategy.max_out_of_orderness_ms is not None:
        return config.auto_watermark_interval_seconds > 0
    return strategy.has_watermarks


def _strategy(operator: Operator) -> WatermarkStrategy[Any] | None:
    is_source = operator.kind is OperatorKind.SOURCE
    strategy: WatermarkStrategy[Any] | None
    strategy = operator.watermark_strategy if is_source else operator.function
    return strategy


def _is_endless(graph: JobGraph, operator: Operator) -> bool:
    upstream = graph.upstream([operator.id])
    return any(
        one.kind is OperatorKind.SOURCE and not one.function.ends
        for one in graph.running
        if one.id in upstream
    )


def _why(operator: Operator) -> str:
    strategy = _strategy(operator)
    if strategy is None:
        return f"source {operator.name!r} has no watermark strategy"
    if not strategy.has_watermarks:
        return f"{operator.name!r} has the strategy no_watermarks()"
    return f"the watermarks of {operator.name!r} are periodic, and their interval is set to 0"
