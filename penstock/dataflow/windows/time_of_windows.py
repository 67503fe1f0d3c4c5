"""Find out how a window uses event time, from its assigner and its trigger."""

from __future__ import annotations

from penstock.dataflow.windows.count_windows import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
)
from penstock.dataflow.windows.other_triggers import PurgingTrigger
from penstock.dataflow.windows.session_windows import (
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
)
from penstock.dataflow.windows.time_triggers import ContinuousEventTimeTrigger, EventTimeTrigger
from penstock.dataflow.windows.time_windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window_assigner import WindowAssigner
from penstock.dataflow.windows.window_operation import WindowOperation

_BY_TIMESTAMP = (
    TumblingEventTimeWindows,
    SlidingEventTimeWindows,
    EventTimeSessionWindows,
    DynamicEventTimeSessionWindows,
)
_BY_COUNT = (CountTumblingWindowAssigner, CountSlidingWindowAssigner)


def needs_timestamps(assigner: WindowAssigner) -> bool:
    """Return whether an assigner cannot choose the windows of a record without a timestamp.

    A user's class may find the time in the record itself, and so may a subclass of these.
    """
    return type(assigner) in _BY_TIMESTAMP


def gives_timestamps(assigner: WindowAssigner) -> bool:
    """Return whether the results of windows have timestamps.

    A window by count has the timestamp of the record that fills it, if the record has one.
    """
    return not isinstance(assigner, _BY_COUNT)


def waits_for_watermarks(operation: WindowOperation) -> bool:
    """Return whether only watermarks make a window fire. Of a user's trigger this is not known."""
    return operation.assigner.is_event_time() and _fires_by_watermarks(operation.trigger)


def _fires_by_watermarks(trigger: Trigger) -> bool:
    if type(trigger) is PurgingTrigger:
        return _fires_by_watermarks(trigger.nested_trigger)
    return type(trigger) in (EventTimeTrigger, ContinuousEventTimeTrigger)
