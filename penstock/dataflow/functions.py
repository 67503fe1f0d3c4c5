"""The functions a program is made of, by PyFlink's names.

Wherever a function object is expected, a plain function or lambda is accepted too. A rich
function has `open` (called once in each subtask before the first record) and `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import RuntimeContext

__all__ = [
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedProcessFunction",
    "MapFunction",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "SinkFunction",
    "check_function",
    "has_end_input",
    "method_of",
]


class Function:
    """The base of all rich functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once per subtask, before the first record; state is asked for here."""

    def close(self) -> None:
        """Called once per subtask, after the last record or on a failure."""


class MapFunction(Function, ABC):
    """One record in, one record out."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record to emit for `value`."""


class FlatMapFunction(Function, ABC):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """The records to emit for `value`; may be a generator."""


class FilterFunction(Function, ABC):
    """Keeps or drops records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep `value`."""


class ReduceFunction(Function, ABC):
    """Combines two values of one key into one of the same kind."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """`value1` is what was combined so far, `value2` the new record."""


class KeySelector(Function, ABC):
    """Takes the key from a record. Must give the same key for the same record, always."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of `value`; see `docs/types.md` for the types that keys may have."""


class Partitioner(Function, ABC):
    """Chooses the subtask that a record goes to."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """An index with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC):
    """Takes records at the end of a stream, at least once."""

    @abstractmethod
    def invoke(self, value: Any) -> None:
        """Take one record."""


class ProcessFunction(Function, ABC):
    """Like a flat map, with a context."""

    class Context:
        """What a process function can ask about the record at hand."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """The records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """The records to emit when the input has ended; by default none.

        Called once in each subtask. In a loop, what is emitted here may come round again: there
        it is called when no record is left in the loop, and again so until no function of the
        loop has emitted into it. (Flink: `BoundedOneInput.endInput`, which loops do not have.)
        """
        del ctx
        return None


class KeyedProcessFunction(Function, ABC):
    """Like a flat map on a keyed stream, with keyed state.

    State comes from `runtime_context.get_state(ValueStateDescriptor(...))` in `open` and is the
    state of the current record's key.
    """

    class Context(ABC):
        """What a keyed process function can ask about the record at hand."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the record that is being processed."""

    @abstractmethod
    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[Any] | None:
        """The records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """The records to emit when the input has ended; by default none.

        Called once for every key that has state, with that key current. In a loop, what is
        emitted here may come round again: there it is called when no record is left in the
        loop, and again so until no function of the loop has emitted into it.
        """
        del ctx
        return None


def has_end_input(function: Any) -> bool:
    """Whether `function` is a process function that has an `end_input` of its own."""
    own = getattr(type(function), "end_input", None)
    return isinstance(function, ProcessFunction | KeyedProcessFunction) and own not in (
        ProcessFunction.end_input,
        KeyedProcessFunction.end_input,
    )


def method_of(function: Any, method: str) -> Callable[..., Any]:
    """The callable behind `function`: its `method` if it is a rich function, else itself."""
    bound = getattr(function, method, None) if isinstance(function, Function) else None
    result: Callable[..., Any] = function if bound is None else bound
    return result


def check_function(function: Any, base: type[Function], method: str) -> Any:
    """Return a function that a program passed to a method of the API.

    Arguments:
        function: anything that can be called, or a `base`.
        base: the class of rich functions that the method takes.
        method: name of the method, for the error.

    Raises:
        GraphError: for anything else, such as the class in place of an object of it.
    """
    # Any other class is a function, too: map(int).
    forgotten = isinstance(function, type) and issubclass(function, Function)
    if isinstance(function, base) or (
        callable(function) and not forgotten and not isinstance(function, Function)
    ):
        return function
    hint = "an instance, not the class" if forgotten else "a function"
    raise GraphError(
        f"{method} takes a function or a {base.__name__} ({hint}), and got {function!r}"
    )
