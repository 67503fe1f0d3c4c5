"""Turn errors into plain values for other processes, and into text for people.

The sender of an error calls `describe`, and the receiver calls `recreate`. Workers send failures to
the JobManager in this way, and the JobManager sends them to its client.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any, TypeVar

from penstock.dataflow.errors import (
    GraphError,
    JobError,
    PenstockError,
    ProtocolError,
    Recoverability,
    StoreError,
    recoverability_of,
)
from penstock.runtime.control.messages import Failed
from penstock.runtime.control.packing import malformed
from penstock.runtime.system.limits import memory_limit
from penstock.snapshot.storage.filesystem.file_errors import store_error

logger = logging.getLogger(__name__)

ErrorT = TypeVar("ErrorT", bound=Exception)


class ConnectionLost(JobError):
    """A data connection between two workers has ended, often because one of them has died."""

    _of_class = Recoverability.ENVIRONMENT


#: The classes of errors that are sent with their message only, keyed by name.
_FAMILIES: dict[str, type[PenstockError]] = {
    "GraphError": GraphError,
    "StoreError": StoreError,
    "ProtocolError": ProtocolError,
}
#: The classes of errors that are sent with the fields of a `JobError`, keyed by name.
_JOB_ERRORS: dict[str, type[JobError]] = {"JobError": JobError, "ConnectionLost": ConnectionLost}
#: The text of Python's error if the system refuses a thread.
_NO_THREAD = "can't start new thread"
#: The maximum length of a record in the text of a failure, in characters. The rest is left out.
MAX_RECORD = 100


def describe(error: PenstockError) -> dict[str, Any]:
    """Return an error as plain values, to be sent over a connection."""
    names = [cls.__name__ for cls in type(error).__mro__]
    if isinstance(error, JobError):
        texts = {
            "message": error.message,
            "operator": error.operator,
            "record": error.record,
            "user_traceback": error.user_traceback,
        }
        shown = {name: text and printable(text) for name, text in texts.items()}
        return {"family": next(name for name in names if name in _JOB_ERRORS), **shown}
    family = next((name for name in names if name in _FAMILIES), "JobError")
    return {"family": family, "message": printable(str(error))}


def printable(text: str) -> str:
    """Escape the lone surrogates of a text, so that every stream can encode it."""
    return text.encode(errors="backslashreplace").decode()


def recreate(described: dict[str, Any]) -> PenstockError:
    """Create an error from the dict that `describe` returned for the original error."""
    family = _FAMILIES.get(described["family"])
    if family is not None:
        return family(described["message"])
    return _JOB_ERRORS.get(described["family"], JobError)(
        described["message"],
        operator=described.get("operator"),
        record=described.get("record"),
        user_traceback=described.get("user_traceback"),
    )


def failure_message(chain: int, subtask: int, error: BaseException) -> Failed:
    """Return the message for the failure of a task.

    Arguments:
        chain: the index of the task's chain; -1 for a failure of the worker itself.
        subtask: the index of the subtask.
        error: any exception. If its class is not one of Penstock's, the receiver raises a
            `ProtocolError` instead.
    """
    if isinstance(error, PenstockError) and not isinstance(error, ProtocolError):
        described = describe(error)
    else:
        described = describe_unexpected(error)
    return Failed(chain, subtask, described, recoverability_of(error).value)


def describe_unexpected(error: BaseException) -> dict[str, Any]:
    """Return an error that the engine does not raise on purpose as plain values.

    If a disk or the network has failed, or the process has reached a limit, the message names this
    cause. Any other error is a bug of the engine. Its traceback shows no user code, but locates the
    bug.
    """
    text = "".join(traceback.format_exception(error))
    if isinstance(error, OSError) and recoverability_of(error) is not Recoverability.RECOVERABLE:
        logger.debug("%s", text)
        return describe(store_error("continue", error.filename, error))
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        logger.debug("%s", text)
        limit = memory_limit() or "the number of processes is limited (ulimit -u)"
        return describe(JobError(f"{_NO_THREAD}: {limit}; raise the limit"))
    return {"family": "ProtocolError", "message": printable(f"{text}\n{error}")}


def failure_of(message: Failed) -> PenstockError:
    """Return the error that a message reports.

    Raise `ProtocolError` if the message is malformed.
    """
    with malformed("failure"):
        error = recreate(message.error)
        error.recoverability = Recoverability(message.recoverability)
    return error


def first_of(group: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group, which may contain other groups."""
    error: BaseExceptionGroup[ErrorT] | ErrorT = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def pinned(error: PenstockError) -> PenstockError:
    """Store the recoverability of an error in the error itself, and return the error.

    Otherwise the recoverability is derived from the cause of the error, and the cause is lost when
    the caller raises the error again.
    """
    error.recoverability = error.recoverability
    return error


def sentence_of(event: dict[str, Any]) -> str:
    """Return a line that contains a failure's message, its operator and its record."""
    lines = event["message"].strip().splitlines() or ["no message"]
    # In an error of the engine, the traceback comes before the message.
    sentence: str = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    operator, record = event.get("operator"), event.get("record")
    if operator and operator not in sentence:
        sentence += f", in {operator!r}"
    if record:
        cut = record if len(record) <= MAX_RECORD else f"{record[:MAX_RECORD]}…"
        sentence += f" (record: {' '.join(cut.split())})"
    return sentence


def details_of(event: dict[str, Any]) -> str:
    """Return the details of a failure that its one-line text does not contain.

    The details are the traceback, or else all lines of the message after the first one.
    """
    traceback = event.get("user_traceback")
    if traceback:
        return str(traceback).rstrip()
    message: str = event["message"].strip()
    if message.startswith("Traceback"):
        return message
    _, _, rest = message.partition("\n")
    return rest
