"""End a process that user code has forked if it returns to the engine.

Such a child has copies of all connections of its parent, and would write to them. A trace function
in the child ends the child as soon as it returns to the engine's code. The parent has no trace
function, so it does not become slower.

A child that ends inside the user's function is not affected, and neither is a child that runs
another program. A child of `multiprocessing` never returns from the code of `multiprocessing`, so
its trace function is removed.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from penstock.dataflow.nested_jobs import current_role

_watching = False


def watch_forks() -> None:
    """End each forked child of this process when the child returns to the engine."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_watch_child)


def _watch_child() -> None:
    # A worker on Spark runs in a process of Spark, which may fork after the job has ended.
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
        # In `map(f, records)` the engine calls `f` again without a traced step of its own. So a
        # call of the user's function by the engine ends the child, too.
        if frame.f_back is engine:
            end()
        code = frame.f_code
        if code.co_name == "_bootstrap" and code.co_filename.endswith("multiprocessing/process.py"):
            sys.settrace(None)

    engine.f_trace = end
    sys.settrace(trace)


def _calling_engine(frame: FrameType) -> FrameType | None:
    """Return the frame of the engine that has called the code that forks, or None.

    The frame that forks is skipped, even if it looks like a frame of the engine. A function of the
    user may be compiled into a loop of the engine.
    """
    caller = frame.f_back
    while caller is not None:
        if str(caller.f_globals.get("__name__")).partition(".")[0] == "penstock":
            return caller
        caller = caller.f_back
    return None
