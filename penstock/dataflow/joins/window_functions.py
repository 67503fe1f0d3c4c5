"""Turn the functions of window joins and co-groups into window functions.

The window of a join contains pairs `(side, record)`. The side is 0 for records of the first
stream, and 1 for records of the second stream. (Flink: `TaggedUnion`.)
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from penstock.dataflow.functions import (
    CoGroupFunction,
    FlatJoinFunction,
    Function,
    JoinFunction,
    RuntimeContext,
    check_function,
    check_methods,
    method_of,
)
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows import WindowFunction

#: A function of a record of each stream, or of the records of each stream.
PairFunction: TypeAlias = Callable[[UserValue, UserValue], UserValue]


class _PairedWindowFunction(WindowFunction):
    """Separates the records of a window by their streams.

    Arguments:
        function: the user's function: a rich function, or a plain one.
        method: the name of the method of a rich function.
    """

    def __init__(self, function: object, method: str) -> None:
        self.function, self.method = function, method

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the user's function."""
        if isinstance(self.function, Function):
            self.function.open(runtime_context)
        self._call = method_of(self.function, self.method)

    def close(self) -> None:
        """Close the user's function."""
        if isinstance(self.function, Function):
            self.function.close()

    def apply(
        self, key: UserValue, window: UserValue, inputs: Iterable[UserValue]
    ) -> Iterable[UserValue] | None:
        """Return the results of a window."""
        del key, window
        first = [record for side, record in inputs if not side]
        second = [record for side, record in inputs if side]
        return self._results(self._call, first, second)

    @abstractmethod
    def _results(
        self, function: PairFunction, first: list[UserValue], second: list[UserValue]
    ) -> Iterable[UserValue] | None:
        """Return the results of the records of a window."""


class _CoGrouping(_PairedWindowFunction):
    """Calls a function with all records of a window."""

    def _results(
        self, function: PairFunction, first: list[UserValue], second: list[UserValue]
    ) -> Iterable[UserValue] | None:
        results: Iterable[UserValue] | None = function(first, second)
        return results


class _Joining(_PairedWindowFunction):
    """Calls a function that returns one result with each pair of a window."""

    def _results(
        self, function: PairFunction, first: list[UserValue], second: list[UserValue]
    ) -> Iterable[UserValue]:
        return (function(one, other) for one in first for other in second)


class _FlatJoining(_PairedWindowFunction):
    """Calls a function that returns an iterable of results with each pair of a window."""

    def _results(
        self, function: PairFunction, first: list[UserValue], second: list[UserValue]
    ) -> Iterator[UserValue]:
        for one in first:
            for other in second:
                yield from function(one, other) or ()


def join_window_function(function: object) -> WindowFunction:
    """Return the window function of a join.

    Arguments:
        function: a `JoinFunction`, a `FlatJoinFunction`, or a function of two records. A generator
            function counts as a `FlatJoinFunction`.

    Raises:
        GraphError: if it is something else.
    """
    if isinstance(function, FlatJoinFunction) or inspect.isgeneratorfunction(function):
        checked = check_function(function, FlatJoinFunction, "apply of a join")
        check_methods(checked)
        return _FlatJoining(checked, "join")
    checked = check_function(function, JoinFunction, "apply of a join")
    check_methods(checked)
    return _Joining(checked, "join")


def co_group_window_function(function: object) -> WindowFunction:
    """Return the window function of a co-group.

    Arguments:
        function: a `CoGroupFunction`, or a function of two lists of records.

    Raises:
        GraphError: if it is something else.
    """
    checked = check_function(function, CoGroupFunction, "apply of a co-group")
    check_methods(checked)
    return _CoGrouping(checked, "co_group")
