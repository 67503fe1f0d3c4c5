"""Errors on their way between processes and to people: as plain values, and in one sentence.

`describe` and `recreate` are the only codec of errors. Workers send failures to the JobManager
with it, and the JobManager sends them to its client.
"""

from __future__ import annotations

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

__all__ = [
    "ConnectionLost",
    "describe",
    "details_of",
    "failure_message",
    "failure_of",
    "first_of",
    "pinned",
    "printable",
    "recreate",
    "sentence_of",
]

ErrorT = TypeVar("ErrorT", bound=Exception)


class ConnectionLost(JobError):
    """A data connection between two workers has ended; often one of them has died."""

    _of_class = Recoverability.ENVIRONMENT


#: The errors that have a message only, and those that have the fields of a `JobError`.
_FAMILIES: dict[str, type[PenstockError]] = {
    "GraphError": GraphError,
    "StoreError": StoreError,
    "ProtocolError": ProtocolError,
}
_JOB_ERRORS: dict[str, type[JobError]] = {"JobError": JobError, "ConnectionLost": ConnectionLost}
#: Longer records are cut in a sentence.
MAX_RECORD = 100


def describe(error: PenstockError) -> dict[str, Any]:
    """Return an error as plain values, for the other end of a connection."""
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
    """Return a text with its lone surrogates escaped, so that every stream takes it."""
    return text.encode(errors="backslashreplace").decode()


def recreate(described: dict[str, Any]) -> PenstockError:
    """Return the error that `describe` was given."""
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
        chain: of the task; -1 for a failure of the worker itself.
        subtask: of the task.
        error: any exception. One that is not Penstock's own is a `ProtocolError` for the receiver.
    """
    if isinstance(error, PenstockError) and not isinstance(error, ProtocolError):
        described = describe(error)
    else:
        # No user code is in its traceback, but the traceback is needed to correct the bug.
        text = "".join(traceback.format_exception(error))
        described = {"family": "ProtocolError", "message": printable(f"{text}\n{error}")}
    return Failed(chain, subtask, described, recoverability_of(error).value)


def failure_of(message: Failed) -> PenstockError:
    """Return the error of a message. Raise `ProtocolError` if it is malformed."""
    with malformed("failure"):
        error = recreate(message.error)
        error.recoverability = Recoverability(message.recoverability)
    return error


def first_of(group: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group, or of the groups in it."""
    error: BaseExceptionGroup[ErrorT] | ErrorT = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def pinned(error: PenstockError) -> PenstockError:
    """Keep the recoverability of an error when raising it again drops its cause."""
    error.recoverability = error.recoverability
    return error


def sentence_of(event: dict[str, Any]) -> str:
    """Return what happened, where and at which record, in one line."""
    lines = event["message"].strip().splitlines() or ["no message"]
    # The traceback of an error of the engine comes before its message.
    sentence: str = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    operator, record = event.get("operator"), event.get("record")
    if operator and operator not in sentence:
        sentence += f", in {operator!r}"
    if record:
        cut = record if len(record) <= MAX_RECORD else f"{record[:MAX_RECORD]}…"
        sentence += f" (record: {' '.join(cut.split())})"
    return sentence


def details_of(event: dict[str, Any]) -> str:
    """Return what the sentence leaves out: the traceback, or further lines."""
    traceback = event.get("user_traceback")
    if traceback:
        return str(traceback).rstrip()
    message: str = event["message"].strip()
    if message.startswith("Traceback"):
        return message
    _, _, rest = message.partition("\n")
    return rest
