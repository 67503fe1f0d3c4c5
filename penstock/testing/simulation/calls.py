"""Find the calls in a user's functions whose results differ from run to run."""

from __future__ import annotations

import datetime
import os
import random
import socket
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.runtime.operators.state.random_numbers import OperatorRandom

_CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
_ADVICE = " (after a failure, RuntimeContext.get_random() gives the same numbers again)"
_NAMES: dict[Any, str] = {
    **{getattr(time, name): f"a clock, time.{name}()" for name in _CLOCKS},
    os.urandom: f"randomness of the system, os.urandom(){_ADVICE}",
}
_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
_PACKAGE = str(Path(__file__).parents[2])


def undetermined_calls(run: Callable[[], object]) -> list[str]:
    """Call a function, and return which calls in the user's code are not determined.

    It sees clocks, random numbers, and connections to other systems, with the file and the line.

    Arguments:
        run: runs the program.
    """
    found: dict[str, None] = {}

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and (what := _described(argument)):
            place = _place(frame)
            if place:
                found[f"{what}, in {place}"] = None

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(found)


def _described(function: Any) -> str | None:
    """Return what a built-in function reads that is not determined; None if it reads nothing."""
    try:
        if function in _NAMES:
            return _NAMES[function]
    except TypeError:
        return None  # it has no hash
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _READS_CLOCK:
        return f"a clock, {owner.__name__}.{name}()"
    if isinstance(owner, random.Random) and name in ("random", "getrandbits"):
        return None if isinstance(owner, OperatorRandom) else f"random numbers{_ADVICE}"
    if isinstance(owner, socket.socket) and name == "connect":
        return "a request to another system"
    return None


_READS_CLOCK = ("now", "utcnow", "today")


def _place(frame: FrameType | None) -> str | None:
    """Return the line of the user's code that is nearest; None if the engine itself calls."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return None
        if not name.startswith(_LIBRARY):
            return f"{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return None
