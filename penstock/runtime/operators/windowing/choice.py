"""Choose the operator that runs a window."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

from penstock.dataflow.windows import (
    AggregateFunction,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowOperation,
)
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.general.window_operator import WindowOperator
from penstock.runtime.operators.windowing.panes.inverse_operator import InversePaneOperator
from penstock.runtime.operators.windowing.panes.pane_operator import PaneOperator
from penstock.runtime.operators.windowing.sessions.session_operator import SessionOperator
from penstock.runtime.operators.windowing.window_caller import has_clear

__all__ = ["make_window_operator"]

_TUMBLING = frozenset({TumblingEventTimeWindows, TumblingProcessingTimeWindows})
_SLIDING = frozenset({SlidingEventTimeWindows, SlidingProcessingTimeWindows})
_SESSIONS = frozenset({EventTimeSessionWindows, ProcessingTimeSessionWindows})
#: The assigners whose windows have operators of their own.
_SPECIAL = _TUMBLING | _SLIDING | _SESSIONS


def make_window_operator(
    operation: WindowOperation, context: OperatorContext, key_of: Callable[[Any], Any]
) -> BaseWindowOperator:
    """Return a new operator for a window.

    The choice depends only on the program, not on data. So a job that is restored chooses the same
    operator, unless its program has changed.
    """
    return _operator_class(operation)(operation, context, key_of)


def _operator_class(operation: WindowOperation) -> type[BaseWindowOperator]:
    assigner: Any = operation.assigner
    kind = type(assigner)
    if kind not in _SPECIAL or operation.evictor is not None or not operation.has_default_trigger:
        return WindowOperator
    if operation.allowed_lateness and has_clear(operation.window_function):
        return WindowOperator  # it calls `clear` for each window, and panes do not know windows
    if kind in _TUMBLING:
        return PaneOperator
    if kind in _SLIDING and assigner.size >= assigner.slide:
        if operation.inverse is not None:
            return InversePaneOperator
        return PaneOperator if _can_merge(operation.aggregator) else WindowOperator
    if kind in _SESSIONS and operation.aggregator is not None and not operation.allowed_lateness:
        return SessionOperator
    return WindowOperator


def _can_merge(aggregator: Any) -> bool:
    """Return whether accumulators of a function can be merged.

    Programs for Flink often have a `merge` that returns None or raises an error, because Flink
    calls it for sessions only. Such a method does not read its arguments.
    """
    if not isinstance(aggregator, AggregateFunction):
        return True
    if aggregator.merge is None:
        return False
    code = getattr(type(aggregator).merge, "__code__", None)
    if code is None:
        return True
    arguments = set(code.co_varnames[1:3]) | set(code.co_cellvars)
    loads = (each for each in dis.get_instructions(code) if each.opname.startswith("LOAD_"))
    return any(not arguments.isdisjoint(_names(each.argval)) for each in loads)


def _names(argument: Any) -> tuple[Any, ...]:
    """Return the variables that an instruction loads; newer versions of Python load two at once."""
    return argument if isinstance(argument, tuple) else (argument,)
