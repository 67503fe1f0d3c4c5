"""Turn errors of user code into a `JobError` that names the operator.

`to_job_error` is for operators, whose errors belong to a record. Enumerators, committers, readers
and writers are called in a `calling` block, because their errors belong to no record.

The errors of connectors and of functions differ in their recoverability. A source or sink talks to
another system, which may work again later; see `connector_recoverability`. A function fails again
with the same record.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import trio

from penstock.dataflow.errors import (
    JobError,
    PenstockError,
    Recoverability,
    connector_recoverability,
)
from penstock.dataflow.nested_jobs import current_role
from penstock.runtime.user_code.breakpoints import quit_message

#: The maximum length of a record in an error message, in characters. A longer record is cut.
RECORD_LENGTH = 500


class Records(Protocol):
    """A batch of records, or a list of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class FailedOperator(Protocol):
    """The operator whose user code raised an exception."""

    iterator: Any

    @property
    def is_connector(self) -> bool:
        """Return whether the user code is a source or a sink."""

    @property
    def name(self) -> str:
        """Return the name of the operator."""

    @property
    def inputs(self) -> Sequence[str]:
        """Return the names of the operators that the operator reads; empty if they are unknown."""

    def hint(self, error: BaseException) -> str:
        """Return advice about the error, to be appended to its message; may be empty."""


@contextmanager
def calling(operator: str, problem: str) -> Iterator[None]:
    """Turn errors of a source or sink in this block into `JobError`s that name the operator.

    If the code runs in a thread, the block must be in that thread too. Else the user's traceback
    would begin with the frames that lead into the thread.

    Arguments:
        operator: the name of the source or sink.
        problem: the beginning of the error message, which names the failed action.
    """
    try:
        yield
    except JobError as error:
        error.operator = error.operator or operator
        raise
    except PenstockError:
        raise
    except BaseException as error:
        if not is_user_error(error):
            raise
        quit = quit_message(error)
        raise JobError(
            f"{problem}: {quit or f'{type(error).__name__}: {error}'}",
            operator=operator,
            user_traceback=user_traceback(error),
            recoverability=(
                Recoverability.NON_RECOVERABLE if quit else connector_recoverability(error)
            ),
        ) from error


def to_job_error(
    error: BaseException, operator: FailedOperator, records: Records, place: str | None = None
) -> JobError:
    """Return a user's exception as a `JobError` with the operator and the record.

    Raise the exception itself if user code did not raise it.

    Arguments:
        error: the exception.
        operator: the operator that was running.
        records: the batch that the operator processed or emitted.
        place: the name of the code that failed if it is not the operator's own function, for
            example the key selector of the next operator.
    """
    if not is_user_error(error):
        raise error
    record = _render_current(operator.iterator, records)
    own_place = place is None or place == operator.name
    none_hint = _none_hint(record, operator.inputs if own_place else [repr(operator.name)])
    if isinstance(error, JobError):
        if error.operator is None:
            error.message += none_hint
        error.operator = error.operator or place or operator.name
        error.record = error.record or record
        # The caller raises the error from itself and so hides its cause, from which the
        # recoverability may come.
        error.recoverability = error.recoverability
        return error
    recoverability = error.recoverability if isinstance(error, PenstockError) else None
    if quit := quit_message(error):
        message, recoverability = quit, Recoverability.NON_RECOVERABLE
    elif isinstance(error, PenstockError):
        # For example, user code has called `get_state` on a stream without keys.
        message = str(error)
    elif place is not None:
        message = f"{type(error).__name__} in the {place}"
        message += none_hint
    elif operator.is_connector:
        message = f"{type(error).__name__} in operator {operator.name!r}"
        # The line about a restart shows the first line of the message, and not the traceback.
        if text := str(error).strip():
            message += f": {text}"
        recoverability = connector_recoverability(error)
    else:
        message = f"{type(error).__name__} in operator {operator.name!r}"
        message += operator.hint(error) or none_hint
    return JobError(
        message,
        operator=place or operator.name,
        record=record,
        user_traceback=user_traceback(error),
        recoverability=recoverability,
    )


def current_index(iterator: Iterator[Any] | None, records: Records) -> int | None:
    """Return the index of the record that was being processed; None if it is unknown.

    Arguments:
        iterator: the iterator that the operator's loop over the records consumes.
        records: the batch over which the iterator runs.
    """
    hint = getattr(iterator, "__length_hint__", None)
    if hint is None:
        return None
    index: int = len(records) - hint() - 1
    return index if 0 <= index < len(records) else None


def _render_current(iterator: Iterator[Any] | None, records: Records) -> str | None:
    index = current_index(iterator, records)
    if index is None:
        return None
    return rendered(records[index])


def _none_hint(record: str | None, inputs: Sequence[str]) -> str:
    """Return advice for an error that the record None has caused, or else an empty text.

    Arguments:
        record: the text of the record.
        inputs: the names of the operators that may have emitted it.
    """
    if record != "None" or not inputs:
        return ""
    return (
        f": the record is None, which {' or '.join(inputs)} emitted. A function returns None where "
        f"it has no return statement"
    )


def rendered(record: Any) -> str:
    """Return the text of a record for an error message. A long text is cut."""
    try:
        text = repr(record)
    except BaseException as error:  # the user's own __repr__ may raise an error, too
        text = f"<{type(record).__name__} whose repr fails: {error}>"
    if len(text) <= RECORD_LENGTH:
        return text
    return f"{text[:RECORD_LENGTH]}… ({len(text)} characters)"


def is_user_error(error: BaseException) -> bool:
    """Return whether user code has raised an exception.

    This is true of all exceptions except trio's cancellation and Ctrl-C. User code may also raise
    `SystemExit` (with `sys.exit`), `GeneratorExit` and `KeyboardInterrupt`. In a process of a job,
    Ctrl-C raises no exception. So a `KeyboardInterrupt` there comes from user code.
    """
    if isinstance(error, KeyboardInterrupt):
        return current_role() is not None
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is not None
    return not isinstance(error, trio.Cancelled)


def user_traceback(error: BaseException) -> str | None:
    """Return the traceback of an exception without the engine's frames at its top.

    For an error of Penstock, return only the user's frames, without the message, which is shown
    anyway. Return None if such an error has no frames of the user.
    """
    if isinstance(error, PenstockError):
        return _user_frames(error)
    own = error.__traceback__
    while own is not None and _is_own(own):
        own = own.tb_next
    if own is None:  # the engine itself raised the exception, for a mistake of the user
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, own))


def raised_by_engine(error: BaseException) -> bool:
    """Return whether the traceback of an exception has only frames of the engine."""
    place = error.__traceback__
    while place is not None and _is_own(place):
        place = place.tb_next
    return place is None


def _user_frames(error: BaseException) -> str | None:
    frames = []
    place = error.__traceback__
    while place is not None:
        if not _is_own(place):
            frames.append((place.tb_frame, place.tb_lineno))
        place = place.tb_next
    if not frames:
        return None
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return "".join(["Traceback (most recent call last):\n", *lines])


def _is_own(place: TracebackType) -> bool:
    name: str = place.tb_frame.f_globals.get("__name__", "")
    return name.startswith("penstock.")
