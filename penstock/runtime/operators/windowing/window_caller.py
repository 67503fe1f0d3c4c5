"""Call window functions, whichever kind they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.windows import (
    AllWindowFunction,
    MergingWindowAssigner,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
    WindowOperation,
)
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.runtime.operators.windowing.window_parts import part_of
from penstock.runtime.operators.windowing.window_services import WindowServices

Results = Iterable[Any] | None


class _Context(ProcessWindowFunction.Context, ProcessAllWindowFunction.Context):
    """The context that a window function receives in addition to the records."""

    def __init__(self, services: WindowServices, merges: bool) -> None:
        self._services, self._merges = services, merges
        self._window: Any = None

    def enter(self, window: Any) -> None:
        """Set the window that the function is called for."""
        self._window = window

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self._services.processing_time()

    def current_watermark(self) -> int:
        return self._services.watermark()

    def window_state(self) -> Any:
        if self._merges:
            raise GraphError(
                "windows that merge, such as sessions, have no state of their own: use "
                "context.global_state(), or get_partitioned_state in a trigger"
            )
        return self._services.window_state(part_of(self._window))

    def global_state(self) -> Any:
        return self._services.global_state()


class WindowCaller:
    """Makes the results of a window from its contents.

    Arguments:
        operation: the functions of the window.
        services: the time and the state of the operator.
    """

    def __init__(self, operation: WindowOperation, services: WindowServices) -> None:
        merges = isinstance(operation.assigner, MergingWindowAssigner)
        self._context = _Context(services, merges)
        self._function = operation.window_function
        self._aggregation = None
        if operation.aggregator is not None:
            self._aggregation = Aggregation.of(operation.aggregator)
        self._keyed = operation.keyed
        #: Whether the function has a method `clear` of its own.
        self.has_clear = has_clear(operation.window_function)
        self._call = self._calling()

    def call(self, key: Any, window: Any, contents: Any) -> Results:
        """Return the results of a window.

        Arguments:
            key: the key.
            window: the window.
            contents: an accumulator if the operation has an aggregator, else a list of records.
        """
        aggregation = self._aggregation
        if aggregation is None:
            return self._call(key, window, contents)
        result = aggregation.result(contents)
        return () if result is None else self._call(key, window, (result,))

    def call_with_records(self, key: Any, window: Any, records: list[Any]) -> Results:
        """Return the results of a window whose contents are records in any case."""
        aggregation = self._aggregation
        elements = records if aggregation is None else aggregation.results_of(records)
        return self._call(key, window, elements) if elements or aggregation is None else ()

    def clear(self, window: Any) -> None:
        """Let the function remove the state of a window, if it has a method for that."""
        if self.has_clear:
            self._context.enter(window)
            self._function.clear(self._context)

    def _calling(self) -> Callable[[Any, Any, Any], Results]:
        """Return a function of a key, a window and elements that calls the window function."""
        function, context = self._function, self._context
        if function is None:
            return _elements
        if isinstance(function, ProcessWindowFunction):
            process = function.process

            def call_process(key: Any, window: Any, elements: Any) -> Results:
                context.enter(window)
                results: Results = process(key, context, elements)
                return results

            return call_process
        if isinstance(function, ProcessAllWindowFunction):
            process_all = function.process

            def call_process_all(key: Any, window: Any, elements: Any) -> Results:
                del key
                context.enter(window)
                results: Results = process_all(context, elements)
                return results

            return call_process_all
        rich = isinstance(function, WindowFunction | AllWindowFunction)
        apply: Callable[..., Results] = function.apply if rich else function
        if self._keyed:
            return apply
        return lambda _, window, elements: apply(window, elements)


def has_clear(function: Any) -> bool:
    """Return whether a window function has a method `clear` of its own."""
    own = getattr(type(function), "clear", None)
    return own not in (None, ProcessWindowFunction.clear, ProcessAllWindowFunction.clear)


def _elements(key: Any, window: Any, elements: Any) -> Results:
    """Return the elements of a window that has no function; they are the results."""
    del key, window
    results: Results = elements
    return results
