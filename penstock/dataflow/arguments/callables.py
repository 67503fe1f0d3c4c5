"""Check that a function takes the arguments that the engine will pass."""

from __future__ import annotations

import functools
import inspect

from penstock.dataflow.errors import GraphError


def check_argument_count(method: str, function: object, count: int, arguments: str) -> None:
    """Check that a function can be called with `count` positional arguments.

    A function whose signature is unknown, such as some built-in ones, passes.

    Arguments:
        method: the name of the API's method, for the error message.
        function: the function.
        count: the number of arguments.
        arguments: the arguments, as the error message shows them.

    Raises:
        GraphError: if `function` is not callable, or takes another number of arguments.
    """
    if not callable(function):
        raise GraphError(f"{method} takes a function, not {function!r}")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise GraphError(
            f"{method} calls its function as {arguments}, and {name_of(function)} takes {signature}"
        ) from None


def name_of(function: object) -> str:
    """Return the name of a function, or of the class of another callable, for messages."""
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name


def is_async(function: object) -> bool:
    """Return whether a call of a function returns a coroutine or an asynchronous generator.

    The function may be a `functools.partial`, or an object with an `async` method `__call__`.
    """
    while isinstance(function, functools.partial):
        function = function.func
    called = inspect.getattr_static(type(function), "__call__", None)
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(kind(one) for kind in kinds for one in (function, called))
