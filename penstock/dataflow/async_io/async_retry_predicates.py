"""Predicates for `AsyncRetryStrategy`: which results and errors are worth another request.

(PyFlink: `pyflink.datastream.async_retry_predicates`.)
"""

from __future__ import annotations

from collections.abc import Sized


def empty_result_predicate(result: Sized | None) -> bool:
    """Return whether a request has returned no records."""
    return result is None or len(result) == 0


def has_exception_predicate(error: BaseException | None) -> bool:
    """Return whether a request has raised an error, whichever it is."""
    return error is not None


def exception_type_predicate(error: object, expected_error_type: type | tuple[type, ...]) -> bool:
    """Return whether a request has raised an error of a type.

    A retry strategy calls its predicates with one argument, so give the type before:

        partial(exception_type_predicate, expected_error_type=ConnectionError)
    """
    return isinstance(error, expected_error_type)
