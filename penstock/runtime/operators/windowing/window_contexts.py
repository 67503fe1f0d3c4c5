"""The contexts that assigners, triggers and evictors see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.dataflow.state import RuntimeContext, StateDescriptor
from penstock.dataflow.windows import Evictor, MergingWindowAssigner, Trigger, WindowAssigner
from penstock.runtime.operators.windowing.window_services import WindowServices


class WindowAssignerContext(WindowAssigner.WindowAssignerContext):
    """Gives an assigner access to the processing time and to keyed state.

    Arguments:
        services: the time of the operator.
        context: the runtime context of the operator.
    """

    def __init__(self, services: WindowServices, context: RuntimeContext) -> None:
        self._services, self._context = services, context

    def get_current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""
        return self._services.processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        """Return the runtime context, whose state belongs to the key of the record."""
        return self._context


class TriggerContext(Trigger.OnMergeContext):
    """Gives a trigger access to time, timers and state of the current key and one window.

    Arguments:
        services: the time, the timers and the state of the operator.
    """

    def __init__(self, services: WindowServices) -> None:
        self._services = services
        self._namespace: Any = None
        self._merged: list[Any] = []

    def enter(self, namespace: Any, merged: list[Any] | None = None) -> None:
        """Set the window that the next calls refer to.

        Arguments:
            namespace: the part of a composite key that names the window.
            merged: the namespaces of the windows that are merged into it.
        """
        self._namespace, self._merged = namespace, merged or []

    def get_current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""
        return self._services.processing_time()

    def get_current_watermark(self) -> int:
        """Return the current watermark; `MIN_WATERMARK` before the first one."""
        return self._services.watermark()

    def register_processing_time_timer(self, time: int) -> None:
        """Call `on_processing_time` when the clock reaches `time`."""
        self._services.register(self._namespace, time, is_event=False)

    def register_event_time_timer(self, time: int) -> None:
        """Call `on_event_time` when the watermark reaches `time`."""
        self._services.register(self._namespace, time, is_event=True)

    def delete_processing_time_timer(self, time: int) -> None:
        """Delete the timer that `register_processing_time_timer` registered for `time`."""
        self._services.delete(self._namespace, time, is_event=False)

    def delete_event_time_timer(self, time: int) -> None:
        """Delete the timer that `register_event_time_timer` registered for `time`."""
        self._services.delete(self._namespace, time, is_event=True)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """Return a state that belongs to the current key and window."""
        return self._services.trigger_state(state_descriptor, self._namespace)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Merge the states of all merged windows into the state of the new window."""
        self._services.merge_trigger_state(state_descriptor, self._namespace, self._merged)


class EvictorContext(Evictor.EvictorContext):
    """Gives an evictor access to time.

    Arguments:
        services: the time of the operator.
    """

    def __init__(self, services: WindowServices) -> None:
        self._services = services

    def get_current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""
        return self._services.processing_time()

    def get_current_watermark(self) -> int:
        """Return the current watermark; `MIN_WATERMARK` before the first one."""
        return self._services.watermark()


class MergeCallback(MergingWindowAssigner.MergeCallback):
    """Passes the merges that an assigner has found to a function.

    Arguments:
        merged: gets the windows that are merged, and the window that they become.
    """

    def __init__(self, merged: Callable[[Iterable[Any], Any], None]) -> None:
        self._merged = merged

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        """Merge the windows `to_be_merged` into `merge_result`."""
        self._merged(to_be_merged, merge_result)
