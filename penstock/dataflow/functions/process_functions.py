"""Define process functions, which also see the context of a record, state and the end of input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions.function import Function

__all__ = ["KeyedProcessFunction", "ProcessFunction", "has_end_input"]


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
