"""Errors of user code: what counts as one, and how it becomes a `JobError` that names the operator.

Tasks convert what operators raise in `operators.py`, with the record. Enumerators, committers,
readers and writers are called in a `calling` block; there is no record.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import trio

from penstock.dataflow.errors import JobError, PenstockError, Recoverability
from penstock.dataflow.job_process import current_role
from penstock.runtime.user_code.breakpoints import quit_message

__all__ = ["calling", "is_user_error", "raised_by_engine", "user_traceback"]


@contextmanager
def calling(operator: str, problem: str) -> Iterator[None]:
    """Raise what user code raises in this block as a `JobError` with the operator's name.

    Arguments:
        operator: the name of the source or sink.
        problem: what the error means for the job; the message begins with it.
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
            recoverability=Recoverability.NON_RECOVERABLE if quit else None,
        ) from error


def is_user_error(error: BaseException) -> bool:
    """Return whether user code raised an exception: any, but a cancellation and a real Ctrl-C.

    User code may raise `SystemExit` (`sys.exit`), `GeneratorExit` and `KeyboardInterrupt`, too.
    In a process of a job no Ctrl-C raises anything, so there a `KeyboardInterrupt` is user code's.
    """
    if isinstance(error, KeyboardInterrupt):
        return current_role() is not None
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is not None
    return not isinstance(error, trio.Cancelled)


def user_traceback(error: BaseException) -> str | None:
    """Return the traceback of an exception without the engine's own frames.

    Of an error that Penstock raised on behalf of the user only the frames are returned, since its
    message says the rest; None if there are none.
    """
    if isinstance(error, PenstockError):
        return _user_frames(error)
    own = error.__traceback__
    while own is not None and _is_own(own):
        own = own.tb_next
    if own is None:  # it was raised by code of ours, on behalf of the user
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, own))


def raised_by_engine(error: BaseException) -> bool:
    """Return whether code of ours raised an exception, on behalf of the user."""
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
