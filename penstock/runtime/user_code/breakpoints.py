"""Refuse breakpoints in the processes of a job, which have no terminal."""

from __future__ import annotations

import os
import sys
import traceback
from bdb import BdbQuit
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.nested_jobs import current_role

_HINT = "needs the job in one process: env.execute(in_process=True) or penstock run --in-process"


def refuse_breakpoints() -> None:
    """Make `breakpoint()` raise an error that explains how to debug a job.

    A debugger that `PYTHONBREAKPOINT` names is called as usual, because it may be a remote
    debugger, which needs no terminal.
    """
    sys.breakpointhook = _refuse


def _refuse(*args: Any, **kwargs: Any) -> Any:
    if os.environ.get("PYTHONBREAKPOINT", "") not in ("", "pdb.set_trace"):
        return sys.__breakpointhook__(*args, **kwargs)
    lines = traceback.format_stack(sys._getframe(1), limit=1)
    raise JobError(
        f"breakpoint() {_HINT}",
        user_traceback="".join(["Traceback (most recent call last):\n", *lines]),
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def quit_message(error: BaseException) -> str | None:
    """Return an error message if the error is `BdbQuit`, and None for any other error.

    A debugger raises `BdbQuit` when the user quits it.
    """
    if not isinstance(error, BdbQuit):
        return None
    return "the debugger was quit" if current_role() is None else f"pdb {_HINT}"
