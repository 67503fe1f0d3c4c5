"""Decide whether a function has an end-of-input hook."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.functions.co_functions import TwoInputProcessFunction
from penstock.dataflow.functions.process_functions import KeyedProcessFunction, ProcessFunction

__all__ = ["has_end_input"]

_CLASSES = (ProcessFunction, KeyedProcessFunction, TwoInputProcessFunction)


def has_end_input(function: Any) -> bool:
    """Return whether `function` is a process function whose class defines `end_input`."""
    own = getattr(type(function), "end_input", None)
    return isinstance(function, _CLASSES) and own not in [kind.end_input for kind in _CLASSES]
