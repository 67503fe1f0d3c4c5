"""Define the base class of user functions, and the checks of functions that a program passes."""

from __future__ import annotations

import inspect
from typing import ClassVar

from penstock.dataflow.arguments.callables import check_argument_count, is_async, name_of
from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import RuntimeContext
from penstock.dataflow.type_variables import UserFunction, UserValue


class Function:
    """The base class of all rich functions. (Flink: `RichFunction`.)

    Examples:
        >>> class Add(MapFunction):
        ...     def open(self, runtime_context):
        ...         self.amount = 10
        ...     def map(self, value):
        ...         return value + self.amount
        >>> list(env.from_collection([1, 2]).map(Add()).execute_and_collect())
        [11, 12]
    """

    #: The methods that the engine awaits if they are `async`.
    _may_be_async: ClassVar[frozenset[str]] = frozenset()

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function before its first record.

        The engine calls this method once in each subtask. A function on a keyed stream gets its
        state here, with `runtime_context.get_state(...)`.
        """

    def close(self) -> None:
        """Release the resources of the function after its last record, or after a failure.

        The engine calls this method once in each subtask.
        """


def method_of(function: UserValue, method: str) -> UserFunction:
    """Return the named method of a rich function, or the function itself if it is plain."""
    bound = getattr(function, method, None) if isinstance(function, Function) else None
    result: UserFunction = function if bound is None else bound
    return result


def check_function(function: object, base: type[Function], method: str) -> UserValue:
    """Check that an argument is a function, and return it.

    Arguments:
        function: the argument: a callable, or an object of class `base`.
        base: the class of rich functions that the API's method takes.
        method: the name of the API's method, for the error message.

    Raises:
        GraphError: if the argument is not a function, if it takes another number of arguments, if
            it is async, or if it is a class of rich functions instead of an object.
    """
    if isinstance(function, base):
        return function
    refuse_async(method, function)
    if method in ("map", "filter") and inspect.isgeneratorfunction(function):
        raise GraphError(
            f"{method} was given {name_of(function)}, which yields: return the result instead, "
            f"or use flat_map, which emits each record that is yielded"
        )
    # A class that is not a rich function can be used as a function, as in `map(int)`.
    forgotten = isinstance(function, type) and issubclass(function, Function)
    if callable(function) and not forgotten and not isinstance(function, Function):
        arguments = _arguments_of(base)
        check_argument_count(method, function, len(arguments), f"({', '.join(arguments)})")
        return function
    hint = "an instance, not the class" if forgotten else "a function"
    raise GraphError(
        f"{method} takes a function or a {base.__name__} ({hint}), and got {function!r}"
    )


def _arguments_of(base: type[Function]) -> list[str]:
    """Return the arguments of the one method that a class of rich functions must define."""
    (method,) = base.__abstractmethods__  # type: ignore[attr-defined]
    return list(inspect.signature(getattr(base, method)).parameters)[1:]


def refuse_async(method: str, function: object) -> None:
    """Raise a `GraphError` if a plain function is async."""
    if not isinstance(function, type | Function) and is_async(function):
        raise GraphError(
            f"{method} was given an async function; functions here are plain ones. "
            f"AsyncDataStream.ordered_wait and unordered_wait take async functions"
        )


def check_methods(function: object) -> None:
    """Check that the engine can call the methods of an object that a program passes.

    Arguments:
        function: a rich function, a source or sink, or a part of a window, such as its trigger.
            Plain functions pass.

    Raises:
        GraphError: if a method takes another number of arguments, or is `async` although the engine
            does not await it.
    """
    awaited = function._may_be_async if isinstance(function, Function) else frozenset()
    checked: set[str] = set()
    for base in type(function).__mro__:
        if not base.__module__.startswith("penstock.dataflow."):
            continue
        for name, defined in vars(base).items():
            own = getattr(type(function), name, None)
            overridden = inspect.isfunction(defined) and own is not defined
            if name.startswith("_") or name in checked or not overridden:
                continue
            checked.add(name)
            arguments = list(inspect.signature(defined).parameters)[1:]
            method = f"{base.__name__}.{name}"
            if is_async(own) and name not in awaited:
                raise GraphError(
                    f"{type(function).__name__}.{name} is an async method, and the engine calls "
                    f"{method} as a plain one: define it with `def`. "
                    f"AsyncDataStream.ordered_wait and unordered_wait await an AsyncFunction"
                )
            check_argument_count(
                method, getattr(function, name), len(arguments), f"({', '.join(arguments)})"
            )
