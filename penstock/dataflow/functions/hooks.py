"""Decide which hooks a process function has."""

from __future__ import annotations

from penstock.dataflow.functions.broadcast_functions import KeyedBroadcastProcessFunction
from penstock.dataflow.functions.co_functions import (
    KeyedCoProcessFunction,
    TwoInputProcessFunction,
)
from penstock.dataflow.functions.process_functions import KeyedProcessFunction, ProcessFunction

_WITH_END = (ProcessFunction, KeyedProcessFunction, TwoInputProcessFunction)
_WITH_TIMERS = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction)


def has_end_input(function: object) -> bool:
    """Return whether `function` is a process function whose class defines `end_input`."""
    own = getattr(type(function), "end_input", None)
    return isinstance(function, _WITH_END) and own not in [kind.end_input for kind in _WITH_END]


def has_on_timer(function: object) -> bool:
    """Return whether `function` is a process function that defines `on_timer`."""
    own = getattr(function, "on_timer", None)
    defaults = [kind.on_timer for kind in _WITH_TIMERS]
    return isinstance(function, _WITH_TIMERS) and getattr(own, "__func__", own) not in defaults
