"""List the builder of each operator, and build operators.

`penstock.dataflow.operators.specs` has the specifications. An operator of another package has its
builders in its specification.
"""

from __future__ import annotations

from penstock.runtime.operators.async_wait.operator import build_async_wait
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.batch.final_aggregations import (
    FinalCountOperator,
    FinalReduceOperator,
)
from penstock.runtime.operators.batch.sorted_input import with_final_timers, with_sorted_input
from penstock.runtime.operators.building import Builder, OperatorPlace, keyed, stateless
from penstock.runtime.operators.columns.batch_operator import BatchOperator
from penstock.runtime.operators.columns.choice import build_columns, build_final_columns
from penstock.runtime.operators.endpoints import build_sink
from penstock.runtime.operators.joins.as_of_join import AsOfJoinOperator
from penstock.runtime.operators.joins.interval_join import IntervalJoinOperator
from penstock.runtime.operators.joins.table_join import (
    ReloadingTableJoinOperator,
    TableJoinOperator,
)
from penstock.runtime.operators.joins.window_join import WindowJoinOperator
from penstock.runtime.operators.keyed import (
    KeyedCountOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    KeyedProcessOperator,
    KeyedReduceOperator,
)
from penstock.runtime.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
)
from penstock.runtime.operators.time.watermark_operators import (
    build_source,
    build_timestamps,
)
from penstock.runtime.operators.two_inputs.builders import (
    build_broadcast,
    build_co_flat_map,
    build_co_map,
    build_co_process,
)
from penstock.runtime.operators.windowing.choice import build_window

_BUILDERS: dict[str, Builder] = {
    "source": build_source,
    "sink": build_sink,
    "map": stateless(MapOperator),
    "flat_map": stateless(FlatMapOperator),
    "filter": stateless(FilterOperator),
    "process": stateless(ProcessOperator),
    "map_batches": stateless(BatchOperator),
    "async_wait": build_async_wait,
    "timestamps_and_watermarks": build_timestamps,
    "table_join": stateless(TableJoinOperator),
    "keyed_map": keyed(KeyedMapOperator),
    "keyed_flat_map": keyed(KeyedFlatMapOperator),
    "keyed_filter": keyed(KeyedFilterOperator),
    "keyed_process": keyed(KeyedProcessOperator),
    "keyed_reduce": keyed(KeyedReduceOperator),
    "keyed_count": keyed(KeyedCountOperator),
    "keyed_window": build_window,
    "keyed_columns": build_columns,
    "co_map": build_co_map,
    "co_flat_map": build_co_flat_map,
    "co_process": build_co_process,
    "keyed_co_map": build_co_map,
    "keyed_co_flat_map": build_co_flat_map,
    "keyed_co_process": build_co_process,
    "co_table_join": stateless(ReloadingTableJoinOperator),
    "keyed_co_window": keyed(WindowJoinOperator),
    "keyed_co_interval_join": keyed(IntervalJoinOperator),
    "keyed_co_as_of_join": keyed(AsOfJoinOperator),
    "broadcast_process": build_broadcast,
    "keyed_broadcast_process": build_broadcast,
}
#: The builders for batch mode, of operators that are different ones there.
_FINAL: dict[str, Builder] = {
    "keyed_reduce": keyed(FinalReduceOperator),
    "keyed_count": keyed(FinalCountOperator),
    "keyed_columns": build_final_columns,
}


def build_operator(place: OperatorPlace, *, batch: bool = False) -> RunningOperator:
    """Return a new operator for a place in a task.

    Arguments:
        place: the operator of the job graph, with its context.
        batch: whether the job runs in batch mode, with all results at the end of the input.
    """
    spec = place.spec
    build = spec.build or _BUILDERS[spec.name]
    if not batch:
        return build(place)
    final = spec.build_final or _FINAL.get(spec.name)
    if final is not None:
        return final(place)
    if spec.sorted_inputs:
        return with_sorted_input(build, place)
    return with_final_timers(build, place) if spec.keyed else build(place)
