"""Errors on their way to the JobManager and to people: as plain values, and in one sentence."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.dataflow.errors import (
    GraphError,
    JobError,
    PenstockError,
    ProtocolError,
    Recoverability,
    StoreError,
)
from penstock.runtime.control.messages import Failed

__all__ = [
    "describe",
    "details_of",
    "failure_of",
    "first_of",
    "pinned",
    "printable",
    "recreate",
    "sentence_of",
]

ErrorT = TypeVar("ErrorT", bound=Exception)

_FAMILIES: dict[str, type[PenstockError]] = {
    "GraphError": GraphError,
    "StoreError": StoreError,
    "ProtocolError": ProtocolError,
}
#: Longer records are cut in a sentence.
MAX_RECORD = 100


def describe(error: PenstockError) -> dict[str, Any]:
    """Return an error as plain values, for the other end of a connection."""
    if isinstance(error, JobError):
        texts = {
            "message": error.message,
            "operator": error.operator,
            "record": error.record,
            "user_traceback": error.user_traceback,
        }
        shown = {name: text and printable(text) for name, text in texts.items()}
        return {"family": "JobError", **shown}
    names = [cls.__name__ for cls in type(error).__mro__]
    family = next((name for name in names if name in _FAMILIES), "JobError")
    return {"family": family, "message": printable(str(error))}


def printable(text: str) -> str:
    """Return a text with its lone surrogates escaped, so that every stream takes it."""
    return text.encode(errors="backslashreplace").decode()


def recreate(event: dict[str, Any]) -> PenstockError:
    """Return the error that `describe` was given."""
    family = _FAMILIES.get(event["family"])
    if family is not None:
        return family(event["message"])
    return JobError(
        event["message"],
        operator=event.get("operator"),
        record=event.get("record"),
        user_traceback=event.get("user_traceback"),
    )


def failure_of(message: Failed) -> PenstockError:
    """Return the error that a task of a worker failed with."""
    text = message.message
    if message.family == "ProtocolError" and message.user_traceback:
        # There is no user code in it, but its traceback helps to mend it.
        text = f"{message.user_traceback}\n{text}"
    error = recreate(
        {
            "family": message.family,
            "message": text,
            "operator": message.operator,
            "record": message.record,
            "user_traceback": message.user_traceback,
        }
    )
    error.recoverability = Recoverability(message.recoverability)
    return error


def first_of(group: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group, or of the groups in it."""
    error: BaseExceptionGroup[ErrorT] | ErrorT = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def pinned(error: PenstockError) -> PenstockError:
    """Keep what the cause of an error says about a restart; raising it again drops the cause."""
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
    """Return what the sentence lacks: the traceback, or the other lines of the message."""
    traceback = event.get("user_traceback")
    if traceback:
        return str(traceback).rstrip()
    message: str = event["message"].strip()
    if message.startswith("Traceback"):
        return message
    _, _, rest = message.partition("\n")
    return rest
