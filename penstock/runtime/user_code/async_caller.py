"""Define the interface of all callers of asynchronous functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Outcome:
    """The result or the error of a call.

    Arguments:
        value: the value that the function has returned.
        error: the error that it has raised; None if it has returned.
    """

    value: Any = None
    error: BaseException | None = None


def outcome_of(function: Callable[[Any], Any], value: Any) -> Outcome:
    """Call a plain function, and return its result or its error.

    So the traceback of the error has only frames of the user.
    """
    try:
        return Outcome(function(value))
    except BaseException as error:
        return Outcome(error=error)


class AsyncCaller(Protocol):
    """Calls asynchronous functions of users. All methods are called in the worker's event loop."""

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call a function with a value, and return at once.

        Arguments:
            function: the function of the user.
            value: its argument.
            done: called later in the worker's event loop with the outcome of the call. It is not
                called for a call that was cancelled in time.

        Returns:
            A function that cancels the call. It does nothing if the call has ended.
        """

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call `open` or `close` of the function where the calls run, and wait for it."""
