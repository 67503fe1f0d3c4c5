"""Hold the operator whose code runs now, so that log records can name it.

The operator is in a context variable. So each trio task has its own value, and a thread that a trio
task starts inherits that value. A task of the job sets the variable once for each batch and
operator, and not for each record.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class OperatorAtWork(Protocol):
    """The identity of a running operator. `OperatorContext` implements it."""

    @property
    def name(self) -> str:
        """Return the name of the operator."""

    @property
    def subtask(self) -> int:
        """Return the index of the subtask, from 0."""


operator_at_work: ContextVar[OperatorAtWork | None] = ContextVar("operator_at_work", default=None)
