"""Create the operators of batch mode."""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.job_graph import Operator, OperatorKind
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.batch.final_aggregations import (
    FinalCountOperator,
    FinalReduceOperator,
)
from penstock.runtime.operators.batch.sorted_input import (
    FinalTimers,
    FinalWindows,
    SortedInput,
)
from penstock.runtime.operators.columns.choice import make_final_columns_operator
from penstock.runtime.operators.windowing.general.window_operator import WindowOperator

__all__ = ["make_batch_operator"]

_WINDOWS = (
    OperatorKind.KEYED_WINDOW,
    OperatorKind.KEYED_CO_WINDOW,
    OperatorKind.KEYED_COLUMNS,
)
_FINAL = {
    OperatorKind.KEYED_REDUCE: FinalReduceOperator,
    OperatorKind.KEYED_COUNT: FinalCountOperator,
}
#: The kinds whose functions get the records of one key after the other.
_SORTED = frozenset(
    {
        OperatorKind.KEYED_PROCESS,
        OperatorKind.KEYED_MAP,
        OperatorKind.KEYED_FLAT_MAP,
        OperatorKind.KEYED_FILTER,
        OperatorKind.KEYED_CO_PROCESS,
        OperatorKind.KEYED_CO_MAP,
        OperatorKind.KEYED_CO_FLAT_MAP,
    }
)
#: The kinds that read their broadcast stream first, and sort the other one if it is keyed.
_BROADCAST = (OperatorKind.BROADCAST_PROCESS, OperatorKind.KEYED_BROADCAST_PROCESS)


def make_batch_operator(operator: Operator, made: RunningOperator) -> RunningOperator:
    """Return the operator of batch mode in place of the operator of streaming mode.

    Arguments:
        operator: the operator of the job graph.
        made: the operator of streaming mode, which is not open yet.
    """
    kind = operator.kind
    first, second = operator.key_selector, operator.second_key_selector
    keys = [None if one is None else method_of(one, "get_key") for one in (first, second)]
    if kind in _FINAL:
        return _FINAL[kind](operator.function, made.context, keys[0])  # type: ignore[arg-type]
    if kind is OperatorKind.KEYED_COLUMNS and operator.function.window is None:
        return make_final_columns_operator(operator.function, made.context)
    batch: RunningOperator = made
    if kind in _SORTED:
        batch = _with(SortedInput, made).sort(keys)
    elif kind in _BROADCAST:
        batch = _with(SortedInput, made).sort(keys, kept=[0])
    elif kind in _WINDOWS and not isinstance(made, WindowOperator):
        batch = _with(FinalWindows, made)
    elif made.context.backend is not None:
        batch = _with(FinalTimers, made)
    return batch


def _with(mixin: Any, made: Any) -> Any:
    """Add a mixin to the class of a new operator, and return the operator."""
    made.__class__ = _combined(mixin, type(made))  # type: ignore[arg-type]
    return made


@cache
def _combined(mixin: type, kind: type) -> type[RunningOperator]:
    return type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {})
