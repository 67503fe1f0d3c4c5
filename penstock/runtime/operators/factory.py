"""Create the operator for each kind of transformation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.job_graph import OperatorKind
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.columns.batch_operator import BatchOperator
from penstock.runtime.operators.columns.choice import make_columns_operator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SourceOperator
from penstock.runtime.operators.joins.table_join import TableJoinOperator
from penstock.runtime.operators.keyed import (
    KeyedCountOperator,
    KeyedFunctionOperator,
    KeyedProcessOperator,
    KeyedReduceOperator,
)
from penstock.runtime.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
)
from penstock.runtime.operators.windowing.choice import make_window_operator

__all__ = ["make_operator"]

_UNKEYED: dict[OperatorKind, Callable[[Any, OperatorContext], RunningOperator]] = {
    OperatorKind.SOURCE: SourceOperator,
    OperatorKind.MAP: MapOperator,
    OperatorKind.FLAT_MAP: FlatMapOperator,
    OperatorKind.FILTER: FilterOperator,
    OperatorKind.PROCESS: ProcessOperator,
    OperatorKind.TABLE_JOIN: TableJoinOperator,
    OperatorKind.MAP_BATCHES: BatchOperator,
}
_KEYED: dict[OperatorKind, Callable[..., RunningOperator]] = {
    OperatorKind.KEYED_REDUCE: KeyedReduceOperator,
    OperatorKind.KEYED_COUNT: KeyedCountOperator,
    OperatorKind.KEYED_WINDOW: make_window_operator,
    OperatorKind.KEYED_PROCESS: KeyedProcessOperator,
    OperatorKind.KEYED_COLUMNS: make_columns_operator,
    **{
        kind: partial(KeyedFunctionOperator, kind=kind)
        for kind in (
            OperatorKind.KEYED_MAP,
            OperatorKind.KEYED_FLAT_MAP,
            OperatorKind.KEYED_FILTER,
        )
    },
}


def make_operator(
    kind: OperatorKind, function: Any, key_selector: Any, context: OperatorContext
) -> RunningOperator:
    """Return a new operator of the given kind, which may be any kind except a sink."""
    if kind in _UNKEYED:
        return _UNKEYED[kind](function, context)
    return _KEYED[kind](function, context, method_of(key_selector, "get_key"))
