"""End a process that user code has forked if it returns to the engine.

Such a process has copies of all connections of its parent, and would write to them. A trace
function in the child, which costs the parent nothing, ends the child at the first step of the
engine's code that had called the user's function.

Other children are left alone: those that end inside the user's function, those that run another
program, and those of `multiprocessing`, which never return from its code. For the latter the trace
function is removed.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from penstock.dataflow.nested_jobs import current_role

__all__ = ["watch_forks"]

_watching = False


def watch_forks() -> None:
    """End forked children of this process that return to the engine."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_watch_child)


def _watch_child() -> None:
    # A worker on Spark is a process of Spark's, which outlives the job.
    engine = _calling_engine(sys._getframe(1)) if current_role() else None
    if engine is None:
        return

    def end(*_: Any) -> None:
        text = (
            f"penstock: process {os.getpid()} was forked by a function of the job and came back "
            f"from it, which only its parent may; it is ended. End it with os._exit()\n"
        )
        os.write(2, text.encode())
        os._exit(1)

    def trace(frame: FrameType, *_: Any) -> None:
        # The engine may call the next function without a step in between, as in `map(f, records)`.
        if frame.f_back is engine:
            end()
        code = frame.f_code
        if code.co_name == "_bootstrap" and code.co_filename.endswith("multiprocessing/process.py"):
            sys.settrace(None)

    engine.f_trace = end
    sys.settrace(trace)


def _calling_engine(frame: FrameType) -> FrameType | None:
    """Return the engine's frame that has called the code that forks.

    The frame that forks is not considered, even if it looks like the engine's: functions of the
    user may be compiled into loops of the engine.
    """
    caller = frame.f_back
    while caller is not None:
        if str(caller.f_globals.get("__name__")).partition(".")[0] == "penstock":
            return caller
        caller = caller.f_back
    return None
