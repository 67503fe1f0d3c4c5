"""Calls of user code beside the tasks: enumerators of sources and committers of sinks.

Tasks explain what operators raise in `operators.py`, with the record. Here there is no record.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.dataflow.errors import JobError, PenstockError

__all__ = ["calling", "user_traceback"]


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
    except Exception as error:
        raise JobError(
            f"{problem}: {type(error).__name__}: {error}",
            operator=operator,
            user_traceback=user_traceback(error),
        ) from error


def user_traceback(error: Exception) -> str:
    """Return the traceback of an exception without the engine's own frames at its beginning."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith("penstock."):
        own = own.tb_next
    if own is None:  # it was raised by code of ours, on behalf of the user
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, own))
