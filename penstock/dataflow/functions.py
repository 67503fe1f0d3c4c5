"""Define the base classes of user functions, with the names of PyFlink.

Most methods of the API take a plain function or lambda as well as an object of one of these
classes. Such an object is called a *rich function*: it has the methods `open` and `close`, and can
have attributes.
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
    """The base class of all rich functions. (Flink: `RichFunction`.)"""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function. Called once in each subtask, before its first record.

        A function on a keyed stream gets its state here: `runtime_context.get_state(...)`.
        """

    def close(self) -> None:
        """Release resources. Called once in each subtask, after the last record or a failure."""


class MapFunction(Function, ABC):
    """Emits exactly one record for each record. (Flink: `MapFunction`.)"""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the record to emit for `value`."""


class FlatMapFunction(Function, ABC):
    """Emits any number of records for each record. (Flink: `FlatMapFunction`.)"""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Return an iterable with the records to emit for `value`. This may be a generator."""


class FilterFunction(Function, ABC):
    """Decides for each record whether to keep or drop it. (Flink: `FilterFunction`.)"""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Return whether to keep the record `value`."""


class ReduceFunction(Function, ABC):
    """Combines two records with the same key into one record of the same type.

    (Flink: `ReduceFunction`.)
    """

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine the previous result `value1` with the new record `value2`.

        Returns:
            The new result, of the same type.
        """


class KeySelector(Function, ABC):
    """Extracts the key of a record. (Flink: `KeySelector`.)

    It must always return the same key for the same record.
    """

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key of the record `value`; `docs/types.md` lists the allowed types of keys."""


class Partitioner(Function, ABC):
    """Chooses the subtask to which a record is sent. (Flink: `Partitioner`.)"""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the index of the subtask for a key, with `0 <= index < num_partitions`."""


class SinkFunction(Function, ABC):
    """Receives each record of a stream, at least once. (Flink: `SinkFunction`.)"""

    @abstractmethod
    def invoke(self, value: Any) -> None:
        """Write or process one record. After a failure, the same record may come again."""


class ProcessFunction(Function, ABC):
    """Emits any number of records for each record, and when the input has ended.

    (Flink: `ProcessFunction`.)
    """

    class Context:
        """The context of the record that is being processed. It has no members yet."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit when the input has ended; by default none.

        Called once in each subtask. In a loop, it is called when no record is left in the loop. If
        an `end_input` then emits records into the loop, every `end_input` of the loop is called
        again after these records are processed. (Flink: `BoundedOneInput.endInput`, which Flink's
        loops do not support.)
        """
        del ctx
        return None


class KeyedProcessFunction(Function, ABC):
    """Emits any number of records for each record of a keyed stream, and has keyed state.

    A state object always refers to the key of the current record:

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

        Called once for every key that has state; that key is then the current key. In a loop, it
        may be called several times, as `ProcessFunction.end_input` describes.
        """
        del ctx
        return None


def has_end_input(function: Any) -> bool:
    """Return whether `function` is a process function whose class defines `end_input`."""
    own = getattr(type(function), "end_input", None)
    return isinstance(function, ProcessFunction | KeyedProcessFunction) and own not in (
        ProcessFunction.end_input,
        KeyedProcessFunction.end_input,
    )


def method_of(function: Any, method: str) -> Callable[..., Any]:
    """Return the named method of a rich function, or the function itself if it is plain."""
    bound = getattr(function, method, None) if isinstance(function, Function) else None
    result: Callable[..., Any] = function if bound is None else bound
    return result


def check_function(function: Any, base: type[Function], method: str) -> Any:
    """Check that an argument is a function, and return it.

    Arguments:
        function: the argument: a callable, or an object of class `base`.
        base: the class of rich functions that the API's method takes.
        method: the name of the API's method, for the error message.

    Raises:
        GraphError: if the argument is not a function, or is a class of rich functions instead of
            an object.
    """
    # A class that is not a rich function can be used as a function, as in `map(int)`.
    forgotten = isinstance(function, type) and issubclass(function, Function)
    if isinstance(function, base) or (
        callable(function) and not forgotten and not isinstance(function, Function)
    ):
        return function
    hint = "an instance, not the class" if forgotten else "a function"
    raise GraphError(
        f"{method} takes a function or a {base.__name__} ({hint}), and got {function!r}"
    )
