"""Choose the operator of an aggregation over columns."""

from __future__ import annotations

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.batch.sorted_input import with_final_timers
from penstock.runtime.operators.building import OperatorPlace


def build_columns(place: OperatorPlace) -> RunningOperator:
    """Build an aggregation, with windows or without."""
    # Only jobs that aggregate columns need NumPy.
    from penstock.runtime.operators.columns.row_windows import RowWindowOperator
    from penstock.runtime.operators.columns.running_aggregation import RunningAggregationOperator
    from penstock.runtime.operators.columns.window_aggregation import WindowAggregationOperator

    aggregation: ColumnAggregation = place.function
    if aggregation.window is None:
        return RunningAggregationOperator(aggregation, place.context)
    cls = WindowAggregationOperator if aggregation.in_arrays else RowWindowOperator
    operator: RunningOperator = place.adapted(cls)(aggregation, place.context)
    return operator


def build_final_columns(place: OperatorPlace) -> RunningOperator:
    """Build an aggregation for batch mode."""
    from penstock.runtime.operators.columns.final_aggregation import FinalAggregationOperator

    if place.function.window is not None:
        return with_final_timers(build_columns, place)
    return FinalAggregationOperator(place.function, place.context)
