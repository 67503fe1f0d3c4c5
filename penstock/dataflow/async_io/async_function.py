"""Define the functions of `AsyncDataStream`, and check those that a program passes."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions.function import Function, check_methods
from penstock.dataflow.type_variables import IN_contra, OUT_co, UserValue


class AsyncFunction(Function, ABC, Generic[IN_contra, OUT_co]):
    """Sends a request for each record, and returns the records to emit. (PyFlink: `AsyncFunction`.)

    `open` and `close` run in the same event loop as the requests. They may be `async def`, too, if
    that is an asyncio loop.

    Examples:
        >>> class Double(AsyncFunction):
        ...     async def async_invoke(self, value):
        ...         return [2 * value]  # or await a request
        >>> numbers = env.from_collection([1, 2])
        >>> list(AsyncDataStream.ordered_wait(numbers, Double(), 5_000).execute_and_collect())
        [2, 4]
    """

    _may_be_async = frozenset({"open", "async_invoke", "timeout", "close"})

    @abstractmethod
    async def async_invoke(self, value: IN_contra) -> Iterable[OUT_co]:
        """Return the records to emit for `value`: a list, which may be empty.

        Many calls run at the same time. A call may be repeated for a record after a restart.
        """

    def timeout(self, value: IN_contra) -> Iterable[OUT_co]:
        """Return the records to emit for `value` if its request has taken too long.

        By default, the job fails with a `TimeoutError`.
        """
        raise TimeoutError(f"the request for {value!r} has timed out")


def check_async_function(method: str, function: object, run_in: str) -> UserValue:
    """Check the function that a program passes to `AsyncDataStream`, and return it.

    Arguments:
        method: the name of the API's method, for the error message.
        function: an `AsyncFunction` or a plain function.
        run_in: where requests run: "asyncio", "trio" or "threads".

    Raises:
        GraphError: if the function cannot run there.
    """
    called = function.async_invoke if isinstance(function, AsyncFunction) else function
    if isinstance(called, type | Function) or not callable(called):
        forgotten = isinstance(called, type) and issubclass(called, Function)
        hint = "an instance, not the class" if forgotten else "`async def`"
        raise GraphError(
            f"{method} takes an async function or an AsyncFunction ({hint}), and got {function!r}"
        )
    check_argument_count(method, called, 1, "(value)")
    name = getattr(called, "__qualname__", None) or type(called).__name__
    if _is_kind(called, inspect.isasyncgenfunction):
        raise GraphError(
            f"{method} got {name}, which yields: an async function returns a list of the records "
            f"to emit"
        )
    is_async = _is_kind(called, inspect.iscoroutinefunction)
    in_threads = run_in in ("threads", "thread")
    if in_threads and is_async:
        raise GraphError(
            f'{method} got the async function {name}: functions that run in "{run_in}" are plain '
            f'ones; leave out run_in="{run_in}"'
        )
    if not in_threads and not is_async:
        raise GraphError(
            f"{method} takes an async function, and {name} is none: define it with `async def`. If "
            f'it blocks instead of awaiting, add run_in="threads"'
        )
    if isinstance(function, AsyncFunction):
        _check_other_methods(method, function, run_in)
    return function


def _check_other_methods(method: str, function: AsyncFunction, run_in: str) -> None:
    check_methods(function)
    plain = ("timeout",) if run_in == "asyncio" else ("open", "close", "timeout")
    for name in plain:
        if _is_kind(getattr(function, name), inspect.iscoroutinefunction):
            raise GraphError(
                f"{method}: {type(function).__name__}.{name} is an async function, and must be a "
                f"plain one with run_in={run_in!r}"
            )


def is_generator(function: object) -> bool:
    """Return whether a function yields its results, as a generator or an asynchronous one."""
    return _is_kind(function, inspect.isasyncgenfunction) or _is_kind(
        function, inspect.isgeneratorfunction
    )


def _is_kind(function: object, check: Callable[[object], bool]) -> bool:
    """Return whether a check holds of a function, also behind `partial` or `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return bool(check(function) or check(inspect.getattr_static(type(function), "__call__", None)))
