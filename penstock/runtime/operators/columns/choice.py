"""Choose the operator of an aggregation over columns."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext

__all__ = ["make_columns_operator"]


def make_columns_operator(
    function: ColumnAggregation, context: OperatorContext, key_of: Any
) -> RunningOperator:
    """Return a new operator for an aggregation, with windows or without."""
    del key_of  # the names of the columns are in the aggregation
    # Only jobs that aggregate columns need NumPy.
    from penstock.runtime.operators.columns.running_aggregation import RunningAggregationOperator
    from penstock.runtime.operators.columns.window_aggregation import WindowAggregationOperator

    if function.assigner is None:
        return RunningAggregationOperator(function, context)
    return WindowAggregationOperator(function, context)
