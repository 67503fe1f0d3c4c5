"""Define the interface of triggers, which decide when a window emits its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Generic

from penstock.dataflow.state import StateDescriptor
from penstock.dataflow.type_variables import S, T_contra, UserValue
from penstock.dataflow.windows.window import W_contra


class TriggerResult(Enum):
    """The decision of a trigger about a window. (Flink: `TriggerResult`.)

    CONTINUE: nothing.
    FIRE: the window function is called, and the window keeps its records.
    PURGE: the records of the window are removed. The window function is not called.
    FIRE_AND_PURGE: the window function is called, then the records are removed.

    A window without records does not call its function.

    Examples:
        >>> TriggerResult.FIRE_AND_PURGE.is_fire(), TriggerResult.FIRE_AND_PURGE.is_purge()
        (True, True)
    """

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Return whether the window function is called."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Return whether the records of the window are removed."""
        return self.value[1]


class Trigger(ABC, Generic[T_contra, W_contra]):
    """Decides when a window emits its result. (Flink: `Trigger`.)

    One trigger object serves all keys and windows of a subtask. It must keep its values for a
    window in the state that `ctx.get_partitioned_state` returns.

    Examples:
        >>> class EveryRecord(Trigger):
        ...     def on_element(self, element, timestamp, window, ctx):
        ...         return TriggerResult.FIRE
        ...     def on_processing_time(self, time, window, ctx):
        ...         return TriggerResult.CONTINUE
        ...     def on_event_time(self, time, window, ctx):
        ...         return TriggerResult.CONTINUE
        ...     def clear(self, window, ctx):
        ...         pass
        ...     def on_merge(self, window, ctx):
        ...         pass
        >>> numbers = env.from_sequence(1, 2).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create()).trigger(EveryRecord())
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1], [1, 2]]
    """

    class TriggerContext(ABC):
        """Gives a trigger access to time, timers and state of the current key and window."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the time of the clock, in milliseconds since the epoch."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the current watermark; `MIN_WATERMARK` before the first one."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Call `on_processing_time` when the clock reaches `time`."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Call `on_event_time` when the watermark reaches `time`."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Delete the timer that `register_processing_time_timer` registered for `time`."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Delete the timer that `register_event_time_timer` registered for `time`."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor[S]) -> S:
            """Return a state that belongs to the current key and window."""

    class OnMergeContext(TriggerContext):
        """The context of a call of `on_merge`."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merge the states of all merged windows into the state of the new window.

            The state must be a list, reducing or aggregating state.
            """

    @abstractmethod
    def on_element(
        self, element: T_contra, timestamp: int, window: W_contra, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return the action for a window to which a record was added.

        Arguments:
            element: the record.
            timestamp: the timestamp of the record; `NO_TIMESTAMP` if it has none.
            window: the window.
            ctx: gives access to time, timers and state.
        """

    @abstractmethod
    def on_processing_time(
        self, time: int, window: W_contra, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return what happens to a window when a processing-time timer for `time` fires."""

    @abstractmethod
    def on_event_time(
        self, time: int, window: W_contra, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return what happens to a window when an event-time timer for `time` fires."""

    def can_merge(self) -> bool:
        """Return whether the trigger can be used with windows that merge, such as sessions.

        A trigger that can has a method `on_merge`.
        """
        return False

    #: A method `on_merge(self, window, ctx)` that updates timers and state after windows were
    #: merged into `window`; `ctx` is an `OnMergeContext`. None if the trigger cannot be used with
    #: windows that merge.
    on_merge: Callable[[UserValue, UserValue], None] | None = None

    @abstractmethod
    def clear(self, window: W_contra, ctx: Trigger.TriggerContext) -> None:
        """Delete the timers and the state of a window, because the window is removed."""


class BuiltInTrigger(Trigger[T_contra, W_contra]):
    """The base of the built-in triggers, which use at most one kind of timers."""

    def on_processing_time(
        self, time: int, window: W_contra, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Do nothing, because the trigger registers no processing-time timers."""
        del time, window, ctx
        return TriggerResult.CONTINUE

    def on_event_time(
        self, time: int, window: W_contra, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Do nothing, because the trigger registers no event-time timers."""
        del time, window, ctx
        return TriggerResult.CONTINUE
