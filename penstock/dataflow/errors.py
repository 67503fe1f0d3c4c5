"""The errors of Penstock: one base, four families.

PenstockError
├── JobError       user code failed; the user's own traceback comes first
├── GraphError     the program cannot be compiled or resumed as it is; says what to change
├── StoreError     a snapshot is missing, damaged or cannot be written; says which file
└── ProtocolError  a bug of ours; says event, state and what led to it

A message says what happened, where, and what to do.
"""

from __future__ import annotations

__all__ = ["GraphError", "JobError", "PenstockError", "ProtocolError", "StoreError"]


class PenstockError(Exception):
    """The base of every error that Penstock raises on purpose."""


class JobError(PenstockError):
    """User code, or what it reads or writes, failed while the job ran.

    Arguments:
        message: what happened and what to do.
        operator: name of the operator at work, if known.
        record: a short rendering of the record at hand, if known.
        user_traceback: the formatted traceback of the user's code, if any; printed first.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        record: str | None = None,
        user_traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operator = operator
        self.record = record
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        parts = []
        if self.user_traceback:
            parts.append(self.user_traceback.rstrip())
        parts.append(self.message)
        if self.operator is not None:
            parts.append(f"  operator: {self.operator}")
        if self.record is not None:
            parts.append(f"  record:   {self.record}")
        return "\n".join(parts)


class GraphError(PenstockError):
    """The program cannot be compiled, or not resumed from this snapshot, as it is."""


class StoreError(PenstockError):
    """A snapshot or the checkpoint folder is missing, damaged, taken or not writable.

    Arguments:
        message: what happened and what to do.
        path: the file or folder in question, if there is one.
    """

    def __init__(self, message: str, path: object = None) -> None:
        super().__init__(message if path is None else f"{message} [{path}]")
        self.path = None if path is None else str(path)


class ProtocolError(PenstockError):
    """A rule of our own was broken: a bug in Penstock, not in the program."""
