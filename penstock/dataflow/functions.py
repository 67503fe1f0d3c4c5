"""The function classes of a program, by PyFlink's names.

Wherever a function object is expected, a plain function or lambda is accepted, too. An object of
one of these classes is a *rich function*: it has `open` and `close`, and its own attributes.
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
    """The base of all rich functions. (Flink: `RichFunction`.)"""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function; called once per subtask, before its first record.

        State is requested here: `runtime_context.get_state(...)`.
        """

    def close(self) -> None:
        """Release resources; called once per subtask, after the last record or a failure."""


class MapFunction(Function, ABC):
    """Turns each record into one record. (Flink: `MapFunction`.)"""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the record to emit for `value`."""


class FlatMapFunction(Function, ABC):
    """Turns each record into any number of records. (Flink: `FlatMapFunction`.)"""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return the records to emit for `value`; may be a generator."""


class FilterFunction(Function, ABC):
    """Keeps or drops records. (Flink: `FilterFunction`.)"""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return whether to keep `value`."""


class ReduceFunction(Function, ABC):
    """Combines two records of one key into one of the same type. (Flink: `ReduceFunction`.)"""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return the combination of `value1`, the result so far, and `value2`, the new record."""


class KeySelector(Function, ABC):
    """Returns the key of a record, always the same for the same one. (Flink: `KeySelector`.)"""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key of `value`; `docs/types.md` lists the types of keys."""


class Partitioner(Function, ABC):
    """Chooses the subtask that a record is sent to. (Flink: `Partitioner`.)"""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the index of the subtask, with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC):
    """Receives the records at the end of a stream, at least once. (Flink: `SinkFunction`.)"""

    @abstractmethod
    def invoke(self, value: Any) -> None:
        """Process one record."""


class ProcessFunction(Function, ABC):
    """Turns each record into any number of records, also at the end of the input.

    (Flink: `ProcessFunction`.)
    """

    class Context:
        """The context of a record; it has no members yet."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit when the input has ended; by default none.

        Called once in each subtask. In a loop it is called when no record is left in the loop.
        If a function of the loop then emits records into the loop, all are called again when
        these are processed. (Flink: `BoundedOneInput.endInput`, which loops do not have.)
        """
        del ctx
        return None


class KeyedProcessFunction(Function, ABC):
    """Turns each record of a keyed stream into any number of records, with keyed state.

    The state is that of the current record's key:

        class Count(KeyedProcessFunction):
            def open(self, runtime_context):
                self.count = runtime_context.get_state(ValueStateDescriptor("count"))

            def process_element(self, value, ctx):
                self.count.update((self.count.value() or 0) + 1)
                yield ctx.get_current_key(), self.count.value()

    (Flink: `KeyedProcessFunction`.)
    """

    class Context(ABC):
        """The context of the record that is being processed."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the record that is being processed."""

    @abstractmethod
    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[Any] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit when the input has ended; by default none.

        Called once for every key that has state, with that key as the current one. In a loop it
        is called, and called again, as `ProcessFunction.end_input` is.
        """
        del ctx
        return None


def has_end_input(function: Any) -> bool:
    """Return whether a function is a process function with an `end_input` of its own."""
    own = getattr(type(function), "end_input", None)
    return isinstance(function, ProcessFunction | KeyedProcessFunction) and own not in (
        ProcessFunction.end_input,
        KeyedProcessFunction.end_input,
    )


def method_of(function: Any, method: str) -> Callable[..., Any]:
    """Return a method of a rich function, or a plain function itself."""
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
