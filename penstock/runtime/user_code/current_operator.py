"""The operator whose code runs now, for log records.

It is in a context variable, so each trio task has its own value, and a thread that a task starts
inherits it. A task of the job sets it once for each batch and operator, and never per record.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

__all__ = ["OperatorAtWork", "operator_at_work"]


class OperatorAtWork(Protocol):
    """The identity of a running operator; implemented by `OperatorContext`."""

    @property
    def name(self) -> str:
        """Return the name of the operator."""

    @property
    def subtask(self) -> int:
        """Return the index of the subtask, from 0."""


operator_at_work: ContextVar[OperatorAtWork | None] = ContextVar("operator_at_work", default=None)
