"""Switch code generation off: for a job, or by `PENSTOCK_CODEGEN=off`."""

from __future__ import annotations

import os
from contextvars import ContextVar

#: The environment variable that switches code generation off in all processes of a job.
VARIABLE = "PENSTOCK_CODEGEN"

_enabled = ContextVar("codegen", default=True)


def is_enabled() -> bool:
    """Return whether code generation is on, so that loops may be specialized."""
    return _enabled.get() and os.environ.get(VARIABLE, "").lower() not in ("off", "false", "0")


def set_enabled(enabled: bool) -> None:
    """Switch code generation on or off in the current trio task and its child tasks."""
    _enabled.set(enabled)
