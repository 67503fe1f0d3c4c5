"""The time, the timers and the state that windows use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import KeyedStateStore, StateDescriptor
from penstock.dataflow.time import MIN_WATERMARK
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.state.scope import NamespaceScope
from penstock.runtime.operators.state.state_store import StateStore, merge_namespaces
from penstock.runtime.operators.time.timer_queue import TimerQueue, TimerRow


class WindowServices:
    """The time, the timers and the state of an operator of windows.

    All timers and states refer to the current key of the context.

    Arguments:
        context: the operator's place in the job.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._latest = MIN_WATERMARK
        self._trigger_scope, self._window_scope = NamespaceScope(context), NamespaceScope(context)
        self._trigger_states = self._states(self._trigger_scope, "trigger/")
        self._window_states = self._states(self._window_scope, "window/")

    def _states(self, scope: NamespaceScope, prefix: str) -> StateStore:
        context = self._context
        return StateStore(context.name, context.backend, scope, context.now_ms, prefix)

    # ---- time and timers

    def watermark(self) -> int:
        """Return the current watermark, in milliseconds since the epoch."""
        return self._context.watermark

    def processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch.

        If the clock was set back, return the latest time so far: windows that have fired before it
        stay closed.
        """
        self._latest = max(self._latest, self._context.now_ms())
        return self._latest

    def timers(self, *, is_event: bool) -> TimerQueue:
        """Return the timers of event time or of processing time."""
        timers = self._context.timers
        return timers.event if is_event else timers.processing

    def due(self, time: int, *, is_event: bool) -> Iterator[TimerRow]:
        """Remove and yield the timers that are due at a time."""
        timers = self._context.timers
        if is_event:
            return timers.due_by_watermark(time)
        self._latest = max(self._latest, time)
        return timers.due_by_clock(time)

    def register(self, namespace: Any, time: int, *, is_event: bool) -> None:
        """Register a timer of the current key."""
        self.timers(is_event=is_event).register(self._context.key, namespace, time)

    def delete(self, namespace: Any, time: int, *, is_event: bool) -> None:
        """Delete a timer of the current key."""
        self.timers(is_event=is_event).delete(self._context.key, namespace, time)

    # ---- state

    def global_state(self) -> KeyedStateStore:
        """Return access to state that belongs to the current key."""
        return self._context

    def window_state(self, namespace: Any) -> KeyedStateStore:
        """Return access to state that belongs to the current key and a window.

        Arguments:
            namespace: the part of a composite key that names the window.
        """
        self._window_scope.set_namespace(namespace)
        return self._window_states

    def trigger_state(self, descriptor: StateDescriptor, namespace: Any) -> Any:
        """Return a state of the trigger that belongs to the current key and a window."""
        self._trigger_scope.set_namespace(namespace)
        return self._trigger_states.of_descriptor(descriptor)

    def merge_trigger_state(
        self, descriptor: StateDescriptor, target: Any, sources: Sequence[Any]
    ) -> None:
        """Merge a state of the trigger in several windows into that of the window `target`.

        Raises:
            GraphError: if states of this kind cannot be merged.
        """
        state = self._trigger_states.of_descriptor(descriptor)
        if not hasattr(state, "put_merged"):
            raise GraphError(
                f"merge_partitioned_state merges list, reducing and aggregating state, and "
                f"{descriptor.name!r} is of another kind: use one of these"
            )
        merge_namespaces(state, self._trigger_scope, target, sources)
