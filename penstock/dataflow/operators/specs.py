"""The specifications of Penstock's operators.

`docs/inside/cookbook.md` shows how to add an operator. The builders of these operators are in
`penstock.runtime.operators.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.batch_function import BatchOperation
from penstock.dataflow.joins.operations import AsOfJoinOperation, IntervalJoinOperation
from penstock.dataflow.operators.operator_spec import OperatorSpec, Role
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import Source
from penstock.dataflow.time.watermark_generators import NoWatermarks
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows import WindowOperation
from penstock.dataflow.windows.time_of_windows import (
    gives_timestamps,
    needs_timestamps,
    waits_for_watermarks,
)

SOURCE = OperatorSpec("source", Role.SOURCE, sets_watermarks=True, replays=True)
SINK = OperatorSpec("sink", Role.SINK, replays=True)
FEEDBACK = OperatorSpec("feedback", Role.FEEDBACK)

#: Keyed operators depend on the order of the records of different channels, on watermarks and on
#: timers.
_KEYED = OperatorSpec("keyed", keyed=True, repeats_steps=True)
KEYED_MAP = replace(_KEYED, name="keyed_map", sorted_inputs=(0,), former_name="map")
KEYED_FLAT_MAP = replace(KEYED_MAP, name="keyed_flat_map", former_name="flat_map")
KEYED_FILTER = replace(KEYED_MAP, name="keyed_filter", keeps_type=True, former_name="filter")
MAP = OperatorSpec("map", with_keys=KEYED_MAP, replays=True)
FLAT_MAP = OperatorSpec("flat_map", with_keys=KEYED_FLAT_MAP, replays=True)
FILTER = OperatorSpec("filter", keeps_type=True, with_keys=KEYED_FILTER, replays=True)
PROCESS = OperatorSpec("process", side_outputs=True, replays=True)
KEYED_PROCESS = replace(_KEYED, name="keyed_process", side_outputs=True, sorted_inputs=(0,))
KEYED_REDUCE = replace(_KEYED, name="keyed_reduce", keeps_type=True)
KEYED_COUNT = replace(_KEYED, name="keyed_count")
MAP_BATCHES = OperatorSpec("map_batches", repeats_steps=True, by_batch=True)
ASYNC_WAIT = OperatorSpec("async_wait", starts_chain=True, own_state=True, repeats_steps=True)
TABLE_JOIN = OperatorSpec("table_join")

CO_MAP = OperatorSpec("co_map", two_inputs=True, repeats_steps=True)
CO_FLAT_MAP = replace(CO_MAP, name="co_flat_map")
CO_PROCESS = replace(CO_MAP, name="co_process", side_outputs=True)
CO_TABLE_JOIN = OperatorSpec("co_table_join", two_inputs=True)
KEYED_CO_MAP = replace(_KEYED, name="keyed_co_map", two_inputs=True, sorted_inputs=(0, 1))
KEYED_CO_FLAT_MAP = replace(KEYED_CO_MAP, name="keyed_co_flat_map")
KEYED_CO_PROCESS = replace(KEYED_CO_MAP, name="keyed_co_process", side_outputs=True)
#: In batch mode, the broadcast stream is processed when it comes, before the other one.
BROADCAST_PROCESS = OperatorSpec(
    "broadcast_process",
    two_inputs=True,
    side_outputs=True,
    sorted_inputs=(0,),
    repeats_steps=True,
)
KEYED_BROADCAST_PROCESS = replace(BROADCAST_PROCESS, name="keyed_broadcast_process", keyed=True)

_TIMESTAMPS = OperatorSpec(
    "timestamps_and_watermarks", keeps_type=True, sets_watermarks=True, replays=True
)
_WINDOW = replace(_KEYED, name="keyed_window", side_outputs=True)
_COLUMNS = OperatorSpec("keyed_columns", keyed=True, side_outputs=True, own_state=True)
_WINDOW_JOIN = replace(_KEYED, name="keyed_co_window", two_inputs=True)
_EVENT_TIME_JOIN = replace(
    _KEYED,
    name="keyed_co_interval_join",
    two_inputs=True,
    side_outputs=True,
    needs_timestamps=True,
    event_time_only=True,
    waits_for_watermarks=True,
)


def source(source: Source) -> OperatorSpec:
    """Return the specification of a source."""
    tags = source.side_output_tags
    return replace(
        SOURCE,
        gives_timestamps=source.has_event_times,
        side_outputs=bool(tags),
        source_tags=tags,
    )


def timestamps(strategy: WatermarkStrategy) -> OperatorSpec:
    """Return the specification of the operator that assigns timestamps and watermarks."""
    return replace(
        _TIMESTAMPS,
        gives_timestamps=strategy.extract_timestamp is not None,
        repeats_steps=strategy.has_known_generator,
        in_batch_mode=without_watermarks,
    )


def without_watermarks(strategy: WatermarkStrategy) -> WatermarkStrategy:
    """Return a watermark strategy that only assigns timestamps."""
    return replace(strategy, create_generator=NoWatermarks, idle_timeout_ms=None, alignment=None)


def keyed_process(
    in_batch_mode: Callable[[UserValue], object],
    *,
    by_event_time: bool = False,
    late_tags: tuple[OutputTag | None, ...] = (),
) -> OperatorSpec:
    """Return the specification of a keyed process function of Penstock.

    Arguments:
        in_batch_mode: returns the function as batch mode runs it.
        by_event_time: whether the function needs timestamps and watermarks.
        late_tags: the tags of its side outputs for late records.
    """
    return replace(
        KEYED_PROCESS,
        in_batch_mode=in_batch_mode,
        needs_timestamps=by_event_time,
        waits_for_watermarks=by_event_time,
        late_tags=late_tags,
    )


def batches(operation: BatchOperation) -> OperatorSpec:
    """Return the specification of the operator of `map_batches`."""
    return replace(MAP_BATCHES, gives_timestamps=operation.timestamps is not None)


def window(operation: WindowOperation) -> OperatorSpec:
    """Return the specification of the operator of a window."""
    return _in_windows(_WINDOW, operation)


def window_join(operation: WindowOperation) -> OperatorSpec:
    """Return the specification of the operator that joins two streams in windows."""
    return _in_windows(_WINDOW_JOIN, operation)


def columns(aggregation: ColumnAggregation) -> OperatorSpec:
    """Return the specification of the operator of an aggregation over columns."""
    operation = aggregation.window
    if operation is None:
        return _COLUMNS
    # A sum of floats depends on which rows are added first. The values of the other aggregations
    # may be floats or whole numbers, which depends on rows that are no longer in the state.
    spec = replace(_COLUMNS, repeats_steps=aggregation.in_arrays, by_batch=True)
    return _in_windows(spec, operation)


def _in_windows(spec: OperatorSpec, operation: WindowOperation) -> OperatorSpec:
    return replace(
        spec,
        needs_timestamps=needs_timestamps(operation.assigner),
        waits_for_watermarks=waits_for_watermarks(operation),
        gives_timestamps=gives_timestamps(operation.assigner),
        late_tags=(operation.late_tag,),
    )


def interval_join(operation: IntervalJoinOperation) -> OperatorSpec:
    """Return the specification of the operator of an interval join."""
    return replace(_EVENT_TIME_JOIN, late_tags=operation.late_tags)


def as_of_join(operation: AsOfJoinOperation) -> OperatorSpec:
    """Return the specification of the operator of an as-of join."""
    late_tags = (operation.late_tag,)
    return replace(_EVENT_TIME_JOIN, name="keyed_co_as_of_join", late_tags=late_tags)
