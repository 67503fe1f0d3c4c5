"""The errors of Penstock: one base, four families.

PenstockError
├── JobError       user code failed; its traceback comes first
├── GraphError     the program cannot be compiled or resumed; the message names the change needed
├── StoreError     a snapshot is missing, damaged or cannot be written; the message has the path
└── ProtocolError  a bug in Penstock; the message has the event, the state and their history

A message states what happened, where, and what to do. Each error also has a `Recoverability`,
which decides how the JobManager handles it.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import ClassVar

__all__ = [
    "GraphError",
    "JobError",
    "PenstockError",
    "ProtocolError",
    "Recoverability",
    "StoreError",
    "recoverability_of",
]


class Recoverability(Enum):
    """Whether a restart may mend a failure. (Flink: `ThrowableType`.)

    RECOVERABLE: a restart may mend it. The job ends if the same failure repeats.
    ENVIRONMENT: the machine, a disk or the network failed, which may pass with time. The restart
        strategy alone decides.
    NON_RECOVERABLE: no restart mends it. The job ends at once, whatever the strategy.
    """

    RECOVERABLE = "recoverable"
    ENVIRONMENT = "environment"
    NON_RECOVERABLE = "non_recoverable"


class PenstockError(Exception):
    """The base of every error that Penstock raises on purpose.

    Arguments:
        message: what happened, where, and what to do.
        recoverability: None takes that of the `OSError` or `PenstockError` it is raised from,
            else that of its class.
    """

    _of_class: ClassVar[Recoverability] = Recoverability.RECOVERABLE

    def __init__(self, message: str, *, recoverability: Recoverability | None = None) -> None:
        super().__init__(message)
        self._recoverability = recoverability

    @property
    def recoverability(self) -> Recoverability:
        """Whether a restart may mend the failure."""
        if self._recoverability is not None:
            return self._recoverability
        cause = self.__cause__
        if isinstance(cause, OSError | PenstockError) and cause is not self:
            return recoverability_of(cause)
        return self._of_class

    @recoverability.setter
    def recoverability(self, value: Recoverability) -> None:
        self._recoverability = value


class JobError(PenstockError):
    """User code, a source or a sink failed while the job ran.

    Arguments:
        message: what happened and what to do.
        operator: name of the operator, if known.
        record: a short text for the record that was processed, if known.
        user_traceback: formatted traceback of the user's code, if any; printed first.
        recoverability: see `PenstockError`.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        record: str | None = None,
        user_traceback: str | None = None,
        recoverability: Recoverability | None = None,
    ) -> None:
        super().__init__(message, recoverability=recoverability)
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
    """The program cannot be compiled, or cannot be resumed from this snapshot."""

    _of_class = Recoverability.NON_RECOVERABLE


class StoreError(PenstockError):
    """A snapshot or checkpoint folder is missing, damaged, in use or not writable.

    Arguments:
        message: what happened and what to do.
        path: the file or folder that the error is about, if there is one.
        recoverability: see `PenstockError`.
    """

    def __init__(
        self,
        message: str,
        path: object = None,
        *,
        recoverability: Recoverability | None = None,
    ) -> None:
        text = message if path is None else f"{message} [{path}]"
        super().__init__(text, recoverability=recoverability)
        self.path = None if path is None else str(path)


class ProtocolError(PenstockError):
    """An internal rule was broken: a bug in Penstock, not in the program."""


#: Limits of the process or the file system, which stay for the life of the process.
_LIMITS = (errno.EFBIG, errno.ENAMETOOLONG)
#: A path is not as the program expects it, which rarely passes with time.
_PATHS = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def recoverability_of(error: BaseException) -> Recoverability:
    """Return whether a restart may mend a failure with this error."""
    if isinstance(error, PenstockError):
        return error.recoverability
    if not isinstance(error, OSError) or isinstance(error, _PATHS):
        return Recoverability.RECOVERABLE
    if error.errno in _LIMITS:
        return Recoverability.NON_RECOVERABLE
    return Recoverability.ENVIRONMENT
