"""Define the triggers that fire when a window ends, and those that fire at intervals."""

from __future__ import annotations

from abc import abstractmethod

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.state import ReducingStateDescriptor
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows.trigger import BuiltInTrigger, Trigger, TriggerResult

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class _TimeTrigger(BuiltInTrigger):
    """Fires at times of one kind: of event time, or of processing time."""

    def can_merge(self) -> bool:
        """Return True."""
        return True

    @staticmethod
    @abstractmethod
    def _now(ctx: Trigger.TriggerContext) -> int:
        """Return the current time."""

    @staticmethod
    @abstractmethod
    def _register_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        """Register a timer for `time`."""

    @staticmethod
    @abstractmethod
    def _delete_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer for `time`."""


class _ByEventTime(_TimeTrigger):
    """Uses the timers of event time."""

    @staticmethod
    def _now(ctx: Trigger.TriggerContext) -> int:
        return ctx.get_current_watermark()

    @staticmethod
    def _register_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_event_time_timer(time)

    @staticmethod
    def _delete_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(time)


class _ByProcessingTime(_TimeTrigger):
    """Uses the timers of processing time."""

    @staticmethod
    def _now(ctx: Trigger.TriggerContext) -> int:
        return ctx.get_current_processing_time()

    @staticmethod
    def _register_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.register_processing_time_timer(time)

    @staticmethod
    def _delete_timer(time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(time)


class _EndTrigger(_TimeTrigger):
    """Fires at the end of the window."""

    def on_merge(self, window: UserValue, ctx: Trigger.OnMergeContext) -> None:
        """Register a timer for the end of the new window, unless it has passed already.

        If the watermark has passed it, the record that led to the merge fires the window.
        """
        end = window.max_timestamp()
        if end > self._now(ctx):
            self._register_timer(end, ctx)

    def clear(self, window: UserValue, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer for the end of the window."""
        self._delete_timer(window.max_timestamp(), ctx)


class EventTimeTrigger(_EndTrigger, _ByEventTime):
    """Fires when the watermark passes the end of the window, and for each later record.

    (Flink: `EventTimeTrigger`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(GlobalWindows.create())
        >>> at_the_end = windows.trigger(EventTimeTrigger.create())
    """

    @staticmethod
    def create() -> EventTimeTrigger:
        """Return a new trigger."""
        return EventTimeTrigger()

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire if the watermark has passed the end of the window, else register a timer for it."""
        del element, timestamp
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return FIRE
        ctx.register_event_time_timer(end)
        return CONTINUE

    def on_event_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire at the end of the window."""
        del ctx
        return FIRE if time == window.max_timestamp() else CONTINUE


class ProcessingTimeTrigger(_EndTrigger, _ByProcessingTime):
    """Fires when the clock passes the end of the window. (Flink: `ProcessingTimeTrigger`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingProcessingTimeWindows.of(5_000))
        >>> same = windows.trigger(ProcessingTimeTrigger.create())
    """

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        """Return a new trigger."""
        return ProcessingTimeTrigger()

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Register a timer for the end of the window."""
        del element, timestamp
        ctx.register_processing_time_timer(window.max_timestamp())
        return CONTINUE

    def on_processing_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire."""
        del time, window, ctx
        return FIRE


class _ContinuousTrigger(_TimeTrigger):
    """Fires at each multiple of an interval.

    Arguments:
        interval: the interval, in milliseconds.
    """

    def __init__(self, interval: int) -> None:
        self.interval = milliseconds_of("the interval of a trigger", interval, least=1)
        #: The next time at which the window fires. After a merge it is the earliest one.
        self.next_fire = ReducingStateDescriptor("fire-time", min)

    def on_merge(self, window: UserValue, ctx: Trigger.OnMergeContext) -> None:
        """Register a timer for the earliest time at which one of the windows was to fire."""
        del window
        ctx.merge_partitioned_state(self.next_fire)
        time = ctx.get_partitioned_state(self.next_fire).get()
        if time is not None:
            self._register_timer(time, ctx)

    def clear(self, window: UserValue, ctx: Trigger.TriggerContext) -> None:
        """Delete the timer and the state of the window."""
        del window
        state = ctx.get_partitioned_state(self.next_fire)
        time = state.get()
        if time is not None:
            self._delete_timer(time, ctx)
            state.clear()

    def _end_interval(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire if an interval ends at `time`, and begin the next interval."""
        state = ctx.get_partitioned_state(self.next_fire)
        if state.get() != time:
            return CONTINUE
        state.clear()
        self._fire_after(time, window, ctx, state)
        return FIRE

    def _fire_after(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext, state: UserValue
    ) -> None:
        """Register a timer for an interval after `time`, or for the window's end.

        The end may have passed: windows by event time may have a trigger by processing time.
        """
        end: int = window.max_timestamp()
        next_fire = min(time + self.interval, end) if time < end else time + self.interval
        state.add(next_fire)
        self._register_timer(next_fire, ctx)


class ContinuousEventTimeTrigger(_ContinuousTrigger, _ByEventTime):
    """Fires when the watermark passes a multiple of an interval, and at the end of the window.

    (Flink: `ContinuousEventTimeTrigger`.)

    Examples:
        >>> days = TumblingEventTimeWindows.of(Time.days(1))
        >>> windows = clicks.key_by(lambda click: click[0]).window(days)
        >>> hourly = windows.trigger(ContinuousEventTimeTrigger.of(Time.hours(1)))
    """

    @staticmethod
    def of(interval: DurationLike) -> ContinuousEventTimeTrigger:
        """Return a trigger with the given interval."""
        return ContinuousEventTimeTrigger(milliseconds_of("the interval of a trigger", interval))

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire if the watermark has passed the end of the window, else register timers."""
        del element
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return FIRE
        ctx.register_event_time_timer(end)
        state = ctx.get_partitioned_state(self.next_fire)
        if state.get() is None:
            self._fire_after(timestamp - timestamp % self.interval, window, ctx, state)
        return CONTINUE

    def on_event_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire at the end of the window, and at the end of each interval."""
        if time == window.max_timestamp():
            return FIRE
        return self._end_interval(time, window, ctx)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger, _ByProcessingTime):
    """Fires when the clock passes a multiple of an interval.

    (Flink: `ContinuousProcessingTimeTrigger`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(GlobalWindows.create())
        >>> hourly = windows.trigger(ContinuousProcessingTimeTrigger.of(Time.hours(1)))
    """

    @staticmethod
    def of(interval: DurationLike) -> ContinuousProcessingTimeTrigger:
        """Return a trigger with the given interval."""
        length = milliseconds_of("the interval of a trigger", interval)
        return ContinuousProcessingTimeTrigger(length)

    def on_element(
        self, element: UserValue, timestamp: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Register a timer for the end of the current interval."""
        del element, timestamp
        state = ctx.get_partitioned_state(self.next_fire)
        if state.get() is None:
            now = ctx.get_current_processing_time()
            self._fire_after(now - now % self.interval, window, ctx, state)
        return CONTINUE

    def on_processing_time(
        self, time: int, window: UserValue, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Fire at the end of each interval."""
        return self._end_interval(time, window, ctx)
