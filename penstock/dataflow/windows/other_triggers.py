"""Define the triggers that count records, never fire, or change another trigger."""

from __future__ import annotations

import operator

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import ReducingStateDescriptor
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows.trigger import BuiltInTrigger, Trigger, TriggerResult

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class CountTrigger(BuiltInTrigger):
    """Fires when a window has received a number of records since it last fired.

    (Flink: `CountTrigger`.)

    Arguments:
        window_size: the number of records, at least 1.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(2))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [1, 2, 3, 4]]
    """

    def __init__(self, window_size: int) -> None:
        self.window_size = whole_number("the count of a CountTrigger", window_size, least=1)
        self.count = ReducingStateDescriptor("count", operator.add)

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        """Return a trigger that fires after each `window_size` records."""
        return CountTrigger(window_size)

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Count the record. Fire if the count is reached, and begin to count again."""
        del element, timestamp, window
        count = ctx.get_partitioned_state(self.count)
        count.add(1)
        if (count.get() or 0) < self.window_size:
            return CONTINUE
        count.clear()
        return FIRE

    def can_merge(self) -> bool:
        """Return True."""
        return True

    def on_merge(self, window: UserValue, ctx: Trigger.OnMergeContext) -> None:
        """Add up the counts of the merged windows."""
        del window
        ctx.merge_partitioned_state(self.count)

    def clear(self, window: UserValue, ctx: Trigger.TriggerContext) -> None:
        """Remove the count of the window."""
        del window
        ctx.get_partitioned_state(self.count).clear()


class NeverTrigger(BuiltInTrigger):
    """Never fires; the default trigger of `GlobalWindows`.

    (Flink: `GlobalWindows.NeverTrigger`.)

    Examples:
        >>> isinstance(GlobalWindows.create().get_default_trigger(env), NeverTrigger)
        True
    """

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Do nothing."""
        del element, timestamp, window, ctx
        return CONTINUE

    def on_merge(self, window: UserValue, ctx: Trigger.OnMergeContext) -> None:
        """Do nothing."""

    def clear(self, window: UserValue, ctx: Trigger.TriggerContext) -> None:
        """Do nothing."""


class PurgingTrigger(Trigger):
    """Removes the records of a window each time that another trigger fires it.

    (Flink: `PurgingTrigger`.)

    Arguments:
        nested_trigger: the other trigger.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create())
        >>> windows = windows.trigger(PurgingTrigger.of(CountTrigger.of(2)))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [3, 4]]
    """

    def __init__(self, nested_trigger: Trigger) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise GraphError(f"PurgingTrigger.of takes a trigger, not {nested_trigger!r}")
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        """Return a trigger that fires with `nested_trigger`, and purges."""
        return PurgingTrigger(nested_trigger)

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return the result of the other trigger, with a purge if it fires."""
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return the result of the other trigger, with a purge if it fires."""
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Return the result of the other trigger, with a purge if it fires."""
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        """Return whether the other trigger can merge."""
        return self.nested_trigger.can_merge() and self.nested_trigger.on_merge is not None

    def on_merge(self, window: UserValue, ctx: Trigger.OnMergeContext) -> None:
        """Call the other trigger."""
        if self.nested_trigger.on_merge is not None:
            self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: UserValue, ctx: Trigger.TriggerContext) -> None:
        """Call the other trigger."""
        self.nested_trigger.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result
