"""Choose the operator that runs a window."""

from __future__ import annotations

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
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.inverse_pane_operator import InversePaneOperator
from penstock.runtime.operators.windowing.pane_operator import PaneOperator
from penstock.runtime.operators.windowing.session_operator import SessionOperator
from penstock.runtime.operators.windowing.sliding_pane_operator import (
    FEWEST_PANES,
    SlidingPaneOperator,
)
from penstock.runtime.operators.windowing.window_caller import has_clear
from penstock.runtime.operators.windowing.window_operator import WindowOperator

_TUMBLING = frozenset({TumblingEventTimeWindows, TumblingProcessingTimeWindows})
_SLIDING = frozenset({SlidingEventTimeWindows, SlidingProcessingTimeWindows})
_SESSIONS = frozenset({EventTimeSessionWindows, ProcessingTimeSessionWindows})
#: The assigners whose windows have operators of their own.
_SPECIAL = _TUMBLING | _SLIDING | _SESSIONS


def build_window(place: OperatorPlace) -> BaseWindowOperator:
    """Build the operator of a window on a keyed stream."""
    key_of: Any = place.keys[0]
    cls = place.adapted(window_class(place.function, place.context))
    operator: BaseWindowOperator = cls(place.function, place.context, key_of)
    return operator


def window_class(operation: WindowOperation, context: OperatorContext) -> type[BaseWindowOperator]:
    """Return the class of the operator of a window.

    The choice depends only on what the program declares, and on the layout of restored state.
    """
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
        if not _merges_panes(operation, context):
            return WindowOperator
        is_long = assigner.size >= FEWEST_PANES * assigner.slide
        if is_long and operation.aggregator is not None:
            return SlidingPaneOperator
        return PaneOperator
    if kind in _SESSIONS and operation.aggregator is not None and not operation.allowed_lateness:
        return SessionOperator
    return WindowOperator


def _merges_panes(operation: WindowOperation, context: OperatorContext) -> bool:
    """Return whether sliding windows merge panes. Restored state keeps its layout."""
    aggregator = operation.aggregator
    if not isinstance(aggregator, AggregateFunction):
        return True
    if aggregator.merge is None:
        return False
    for cls in (PaneOperator, WindowOperator):
        if not context.restored_states.isdisjoint(cls.state_names(operation)):
            return cls is PaneOperator
    return aggregator.merges_panes
