"""Define the errors of Penstock: one base class and four subclasses.

PenstockError
├── JobError       user code failed; the message begins with the traceback of the user code
├── GraphError     the program cannot be compiled or resumed; the message says what to change
├── StoreError     a snapshot is missing, damaged or cannot be written; the message has the path
└── ProtocolError  Penstock has a bug; the message has the event and the state

A message says what happened, where it happened, and what the user should do. Each error also has a
`Recoverability`, which decides how the JobManager handles the error.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import ClassVar


class Recoverability(Enum):
    """Classifies failures by whether a restart may help. (Flink: `ThrowableType`.)

    RECOVERABLE: a restart may help. The job ends if the same failure repeats.
    ENVIRONMENT: the machine, a disk or the network failed, and may work again later. Only the
        restart strategy decides whether the job is restarted.
    NON_RECOVERABLE: a restart does not help. The job ends at once, and the restart strategy is
        ignored.

    Examples:
        >>> JobError("the disk is full", recoverability=Recoverability.RECOVERABLE).recoverability
        <Recoverability.RECOVERABLE: 'recoverable'>
    """

    RECOVERABLE = "recoverable"
    ENVIRONMENT = "environment"
    NON_RECOVERABLE = "non_recoverable"


class PenstockError(Exception):
    """The base of every error that Penstock raises on purpose.

    Arguments:
        message: the message, which says what happened, where, and what to do.
        recoverability: whether a restart may help. If it is None, the error has the recoverability
            of the `OSError` or `PenstockError` that caused it. Without such a cause, the default of
            the error's class applies.

    Examples:
        >>> try:
        ...     env.set_parallelism(0)
        ... except PenstockError as error:
        ...     print(type(error).__name__)
        GraphError
    """

    _of_class: ClassVar[Recoverability] = Recoverability.RECOVERABLE

    def __init__(self, message: str, *, recoverability: Recoverability | None = None) -> None:
        super().__init__(message)
        self._recoverability = recoverability

    @property
    def recoverability(self) -> Recoverability:
        """Whether a restart may help after this failure."""
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
    """Raised when user code, a source or a sink fails while the job runs.

    Arguments:
        message: the message, which says what happened and what to do.
        operator: the name of the operator, if it is known.
        record: a short text that describes the record that was processed, if it is known.
        user_traceback: the formatted traceback of the user's code, if there is one. It is printed
            before the message.
        recoverability: whether a restart may help; see `PenstockError`.

    Examples:
        >>> try:
        ...     list(env.from_collection([0]).map(lambda n: 1 / n).execute_and_collect())
        ... except JobError as error:
        ...     print(error.operator, error.record)
        Map 0
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
    """Raised when the program cannot be compiled, or cannot be resumed from a snapshot.

    Examples:
        >>> try:
        ...     env.set_parallelism(0)
        ... except GraphError as error:
        ...     print(error)
        the parallelism of the job must be at least 1, not 0
    """

    _of_class = Recoverability.NON_RECOVERABLE


class StoreError(PenstockError):
    """Raised when a snapshot or checkpoint folder is missing, damaged or cannot be used.

    Arguments:
        message: the message, which says what happened and what to do.
        path: the file or folder that caused the error, if there is one.
        recoverability: whether a restart may help; see `PenstockError`.

    Examples:
        >>> issubclass(StoreError, PenstockError)
        True
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
    """Raised when an internal rule is broken, which is a bug in Penstock.

    Examples:
        >>> issubclass(ProtocolError, PenstockError)
        True
    """


#: The errors of Python for a mistake in code or in data, which a connector repeats at each restart.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
#: The error numbers for limits of the process or the file system, which do not change with time.
_LIMITS = (errno.EFBIG, errno.ENAMETOOLONG)
#: The errors for a path that is not as the program expects. Waiting rarely helps with them.
_PATHS = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def recoverability_of(error: BaseException) -> Recoverability:
    """Return the recoverability of a failure with this error."""
    if isinstance(error, PenstockError):
        return error.recoverability
    if not isinstance(error, OSError) or isinstance(error, _PATHS):
        return Recoverability.RECOVERABLE
    if error.errno in _LIMITS:
        return Recoverability.NON_RECOVERABLE
    return Recoverability.ENVIRONMENT


def connector_recoverability(error: BaseException) -> Recoverability:
    """Return the recoverability of a failure with an error that a source or a sink raised.

    A connector talks to another system, whose client has error classes of its own. So an error of
    an unknown class counts as a failure of that system. An error that Python raises for a mistake
    in the code counts as a mistake in the connector. A connector can raise a `JobError` with
    another recoverability.
    """
    if isinstance(error, PenstockError | OSError):
        return recoverability_of(error)
    if isinstance(error, _MISTAKES) or not isinstance(error, Exception):
        return Recoverability.RECOVERABLE
    return Recoverability.ENVIRONMENT
