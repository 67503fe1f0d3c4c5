"""Create the operators with two inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.dataflow.functions import Function, method_of
from penstock.dataflow.graph.job_graph import Operator, OperatorKind
from penstock.dataflow.operator_state import CheckpointedFunction
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins.as_of_join import AsOfJoinOperator
from penstock.runtime.operators.joins.interval_join import IntervalJoinOperator
from penstock.runtime.operators.joins.table_join import ReloadingTableJoinOperator
from penstock.runtime.operators.joins.window_join import WindowJoinOperator
from penstock.runtime.operators.two_inputs.broadcast import (
    BroadcastStates,
    ReadOnlyContext,
)
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.operators.two_inputs.sides import (
    BroadcastSide,
    FlatMapSide,
    KeyedReadOnlySide,
    KeyedSide,
    MapSide,
    ProcessSide,
    as_flat_map,
    as_map,
)

__all__ = ["make_two_input_operator"]

Side = Callable[[Any, OperatorContext, str], RunningOperator]
_UNKEYED: dict[OperatorKind, tuple[Side, str]] = {
    OperatorKind.CO_MAP: (MapSide, "map"),
    OperatorKind.CO_FLAT_MAP: (FlatMapSide, "flat_map"),
    OperatorKind.CO_PROCESS: (ProcessSide, "process_element"),
}
_KEYED: dict[OperatorKind, tuple[Callable[..., RunningOperator], str]] = {
    OperatorKind.KEYED_CO_MAP: (partial(KeyedSide, adapted=as_map), "map"),
    OperatorKind.KEYED_CO_FLAT_MAP: (partial(KeyedSide, adapted=as_flat_map), "flat_map"),
    OperatorKind.KEYED_CO_PROCESS: (KeyedSide, "process_element"),
}
_JOINS: dict[OperatorKind, Callable[..., TwoInputOperator]] = {
    OperatorKind.KEYED_CO_WINDOW: WindowJoinOperator,
    OperatorKind.KEYED_CO_INTERVAL_JOIN: IntervalJoinOperator,
    OperatorKind.KEYED_CO_AS_OF_JOIN: AsOfJoinOperator,
}
#: The kinds that run without keys if the function cannot have keyed state.
_SIMPLER = {
    OperatorKind.KEYED_CO_MAP: OperatorKind.CO_MAP,
    OperatorKind.KEYED_CO_FLAT_MAP: OperatorKind.CO_FLAT_MAP,
}


def make_two_input_operator(operator: Operator, context: OperatorContext) -> TwoInputOperator:
    """Return a new operator with two inputs.

    Arguments:
        operator: the operator of the job graph.
        context: the operator's place in the job.
    """
    kind, function = operator.kind, operator.function
    if kind is OperatorKind.CO_TABLE_JOIN:
        return ReloadingTableJoinOperator(function, context)
    if operator.broadcast_states:
        return _broadcast(operator, context)
    selectors = operator.key_selector, operator.second_key_selector
    if kind in _JOINS:
        keys = [method_of(selector, "get_key") for selector in selectors]
        return _JOINS[kind](function, context, *keys)
    if kind in _SIMPLER and not _may_use_keyed_state(function):
        kind = _SIMPLER[kind]
    if kind in _UNKEYED:
        side, method = _UNKEYED[kind]
        first, second = (side(function, context, f"{method}{number}") for number in (1, 2))
    else:
        keyed, method = _KEYED[kind]
        first, second = (
            keyed(function, context, method_of(selector, "get_key"), f"{method}{number}")
            for number, selector in enumerate(selectors, 1)
        )
    return TwoInputOperator(function, context, first, second)


def _broadcast(operator: Operator, context: OperatorContext) -> TwoInputOperator:
    function = operator.function
    states = BroadcastStates(context, operator.broadcast_states)
    first: RunningOperator
    if operator.kind.keyed:
        key_of = method_of(operator.key_selector, "get_key")
        first = KeyedReadOnlySide(function, context, key_of, states)
    else:
        shown = ReadOnlyContext(context, states)
        first = ProcessSide(function, context, "process_element", shown)
    second = BroadcastSide(function, context, states)
    return TwoInputOperator(function, context, first, second, states)


def _may_use_keyed_state(function: Any) -> bool:
    """Return whether a function has a method in which it can get keyed state."""
    return type(function).open is not Function.open or isinstance(function, CheckpointedFunction)
