"""Prevent a process that is part of a job from executing another job.

A worker imports the modules of the functions that it runs. If such an import executed a job, the
workers of that job would import the module again, and so on. The number of processes would grow
without limit.

The role of the process is a variable of this module, not an environment variable. So a function may
start another program as a subprocess, and that program may execute jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.dataflow.errors import GraphError

_role: str | None = None


@contextmanager
def running_as(role: str) -> Iterator[None]:
    """Mark this process as part of a job while the `with` block runs.

    Arguments:
        role: the description of the process in error messages, such as "a worker".
    """
    global _role
    before, _role = _role, role
    try:
        yield
    finally:
        _role = before


def current_role() -> str | None:
    """Return the role of this process in a job, or None if it is not part of a job."""
    return _role


def refuse_nested_job() -> None:
    """Raise a `GraphError` if this process is part of a job."""
    if _role is None:
        return
    found = _importing_module()
    if found is None:
        raise GraphError(
            f"a function of the job executes a job of its own in {_role} process: execute it in "
            f"the program, or start it as a program of its own (subprocess)"
        )
    module, file, line = found
    raise GraphError(
        f"{_role} has imported {module}, which executes a job when it is imported "
        f'({file}, line {line}): put that below `if __name__ == "__main__":`'
    )


def _importing_module() -> tuple[str, str, int] | None:
    """Return the name, file and line of the module whose import led to this call, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        imported = caller is not None and caller.f_code.co_filename.startswith("<frozen importlib")
        if imported and code.co_name == "<module>":
            return str(frame.f_globals.get("__name__")), code.co_filename, frame.f_lineno
        frame = caller
    return None
