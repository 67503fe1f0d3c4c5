"""Knows the operator that runs, for what is logged meanwhile.

A context variable holds it, so each task of the event loop has its own value, and a thread that a
task starts inherits it. Tasks set it once for each batch and operator, and never per record.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

__all__ = ["OperatorAtWork", "operator_at_work"]


class OperatorAtWork(Protocol):
    """What is known of a running operator; an `OperatorContext`."""

    @property
    def name(self) -> str:
        """Return the name of the operator."""

    @property
    def subtask(self) -> int:
        """Return the index of the subtask, from 0."""


operator_at_work: ContextVar[OperatorAtWork | None] = ContextVar("operator_at_work", default=None)
