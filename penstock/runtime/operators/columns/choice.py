"""Choose the operator of an aggregation over columns."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext

__all__ = ["make_columns_operator", "make_final_columns_operator"]

#: The windows whose groups are kept in arrays.
_IN_ARRAYS = (TumblingEventTimeWindows, SlidingEventTimeWindows)


def make_columns_operator(
    function: ColumnAggregation, context: OperatorContext, key_of: Any
) -> RunningOperator:
    """Return a new operator for an aggregation, with windows or without."""
    del key_of  # the names of the columns are in the aggregation
    # Only jobs that aggregate columns need NumPy.
    from penstock.runtime.operators.columns.row_windows import RowWindowOperator
    from penstock.runtime.operators.columns.running_aggregation import RunningAggregationOperator
    from penstock.runtime.operators.columns.window_aggregation import WindowAggregationOperator

    window = function.window
    if window is None:
        return RunningAggregationOperator(function, context)
    if isinstance(window.assigner, _IN_ARRAYS) and not window.allowed_lateness:
        return WindowAggregationOperator(function, context)
    return RowWindowOperator(function, context)


def make_final_columns_operator(
    function: ColumnAggregation, context: OperatorContext
) -> RunningOperator:
    """Return a new operator for an aggregation without windows in batch mode."""
    from penstock.runtime.operators.columns.final_aggregation import FinalAggregationOperator

    return FinalAggregationOperator(function, context)
