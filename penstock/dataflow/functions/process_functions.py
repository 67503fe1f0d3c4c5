"""Define process functions, which can also use the key, keyed state and the end of the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions.function import Function

__all__ = ["KeyedProcessFunction", "ProcessFunction"]


class ProcessFunction(Function, ABC):
    """Emits any number of records for each input record, and at the end of the input.

    (Flink: `ProcessFunction`.)
    """

    class Context:
        """The context of the record that is being processed. It has no members yet."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit for `value`: a generator, another iterable, or None."""

    def end_input(self, ctx: ProcessFunction.Context) -> Iterable[Any] | None:
        """Return the records to emit when the input has ended. By default there are none.

        The engine calls this method once in each subtask. In a loop, the engine calls it when no
        record is left in the loop. If an `end_input` then emits records into the loop, the engine
        calls every `end_input` of the loop again after these records are processed. (Flink:
        `BoundedOneInput.endInput`, which Flink's loops do not support.)
        """
        del ctx
        return None


class KeyedProcessFunction(Function, ABC):
    """Emits any number of records for each record of a keyed stream, and uses keyed state.

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
        """Return the records to emit when the input has ended. By default there are none.

        The engine calls this method once for every key that has state. The current key is then that
        key. In a loop, the engine may call it several times, as `ProcessFunction.end_input`
        describes.
        """
        del ctx
        return None
