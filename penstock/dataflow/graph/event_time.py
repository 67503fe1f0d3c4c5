"""Check that records have timestamps, and that watermarks come, where an operator needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy


def check_event_time(graph: JobGraph) -> None:
    """Check that something gives timestamps to the records of each operator that needs them.

    Such operators are event-time windows and joins. A user-defined source may know timestamps, and
    a user-defined window may need none.

    Raises:
        GraphError: if no operator before such an operator gives timestamps.
    """
    for operator in graph.running:
        if not operator.spec.needs_timestamps:
            continue
        edges = graph.inputs_of(operator.id)
        for input in sorted({edge.input for edge in edges}):
            before = graph.upstream(edge.source for edge in edges if edge.input == input)
            if any(gives_timestamps(one) for one in graph.running if one.id in before):
                continue
            records = "its records"
            if operator.spec.two_inputs:
                records = f"the records of its {'second' if input else 'first'} stream"
            alternative = "" if operator.spec.event_time_only else ", or use processing time"
            raise GraphError(
                f"operator {operator.name!r} needs event time, and no operator before it gives "
                f"{records} timestamps: call assign_timestamps_and_watermarks("
                f"WatermarkStrategy....with_timestamp_assigner(...)) before it{alternative}"
            )


def gives_timestamps(operator: Operator) -> bool:
    """Return whether an operator gives timestamps to the records that it emits."""
    strategy = operator.watermark_strategy
    assigns = strategy is not None and strategy.extract_timestamp is not None
    return assigns or operator.spec.gives_timestamps


def check_watermarks(graph: JobGraph, config: JobConfig) -> None:
    """Check that watermarks can come to each operator that waits for them.

    Such operators are event-time windows with a trigger of event time, and event-time joins.
    The lowest watermark of all inputs counts. A single endless input without watermarks holds back
    the watermark of all inputs. An input that ends has its last watermark then.

    Raises:
        GraphError: if no watermark can ever come to such an operator.
    """
    for operator in graph.running:
        if not operator.spec.waits_for_watermarks:
            continue
        sources = [edge.source for edge in graph.inputs_of(operator.id)]
        for one in _without_watermarks(graph, config, sources):
            raise GraphError(
                f"operator {operator.name!r} waits for watermarks, and none ever comes: "
                f"{_why(one)}, and its records never end. Give it a strategy with watermarks, such "
                f"as WatermarkStrategy.for_bounded_out_of_orderness(...)"
            )


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
        if operator.spec.sets_watermarks:
            if not _has_watermarks(operator, config) and _is_endless(graph, operator):
                yield operator
            continue
        new = {edge.source for edge in graph.inputs_of(operator.id)} - found
        found |= new
        waiting += new


def _has_watermarks(operator: Operator, config: JobConfig) -> bool:
    """Return whether an operator may emit watermarks, or does not hold back those of others."""
    strategy = _strategy(operator)
    if operator.spec.is_source and operator.function.emits_watermarks:
        return True
    if strategy is None:
        return False
    if strategy.idle_timeout_ms is not None:
        return True
    if strategy.max_out_of_orderness_ms is not None:
        return config.auto_watermark_interval_seconds > 0
    return strategy.has_watermarks


def _strategy(operator: Operator) -> WatermarkStrategy | None:
    """Return the watermark strategy of an operator that sets watermarks; None if it has none."""
    return operator.watermark_strategy if operator.spec.is_source else operator.function


def _is_endless(graph: JobGraph, operator: Operator) -> bool:
    upstream = graph.upstream([operator.id])
    return any(
        one.spec.is_source and not one.function.ends for one in graph.running if one.id in upstream
    )


def _why(operator: Operator) -> str:
    strategy = _strategy(operator)
    if strategy is None:
        return f"source {operator.name!r} has no watermark strategy"
    if not strategy.has_watermarks:
        return f"{operator.name!r} has the strategy no_watermarks()"
    return f"the watermarks of {operator.name!r} are periodic, and their interval is set to 0"
