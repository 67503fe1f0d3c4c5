"""Define tumbling and sliding windows, by event time and by processing time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.type_variables import T_contra, UserValue
from penstock.dataflow.windows.time_triggers import EventTimeTrigger, ProcessingTimeTrigger
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import TimeWindow
from penstock.dataflow.windows.window_assigner import WindowAssigner


def without_timestamp(assigner: object) -> JobError:
    """Return the error for a record without a timestamp in an event-time window."""
    return JobError(
        f"a record without a timestamp came to {type(assigner).__name__}: call "
        f"assign_timestamps_and_watermarks(...) before the window, give the source a "
        f"WatermarkStrategy with a timestamp assigner, or use processing-time windows"
    )


class _TimeAssigner(WindowAssigner[T_contra, TimeWindow]):
    @abstractmethod
    def windows_at(self, time: int, element: T_contra) -> Collection[TimeWindow]:
        """Return the windows of a record at the given time."""


class EventTimeAssigner(_TimeAssigner[T_contra]):
    """Chooses the windows of a record by its timestamp."""

    def assign_windows(
        self, element: T_contra, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the windows of a record at its timestamp."""
        del context
        if timestamp == NO_TIMESTAMP:
            raise without_timestamp(self)
        return self.windows_at(timestamp, element)

    def get_default_trigger(self, env: UserValue = None) -> Trigger[T_contra, TimeWindow]:
        """Return an `EventTimeTrigger`."""
        del env
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """Return True."""
        return True


class ProcessingTimeAssigner(_TimeAssigner[T_contra]):
    """Chooses the windows of a record by the time of the clock."""

    def assign_windows(
        self, element: T_contra, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return the windows of a record at the time of the clock."""
        del timestamp
        return self.windows_at(context.get_current_processing_time(), element)

    def get_default_trigger(self, env: UserValue = None) -> Trigger[T_contra, TimeWindow]:
        """Return a `ProcessingTimeTrigger`."""
        del env
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class _TumblingWindows:
    """Divides time into windows of equal length.

    Arguments:
        size: the length of a window, in milliseconds.
        offset: windows begin at `offset + n * size` milliseconds after the epoch.
    """

    def __init__(self, size: DurationLike, offset: DurationLike = 0) -> None:
        name = type(self).__name__
        self.size = milliseconds_of(f"the size of {name}", size, least=1)
        self.offset = milliseconds_of(f"the offset of {name}", offset, least=None)
        if abs(self.offset) >= self.size:
            raise GraphError(
                f"the offset of {name} must be shorter than the size of {self.size} ms, and is "
                f"{self.offset} ms"
            )

    @property
    def slide(self) -> int:
        """The time between the starts of two windows, in milliseconds: their length."""
        return self.size

    def windows_at(self, time: int, element: UserValue) -> list[TimeWindow]:
        """Return the window that contains a time, in a list."""
        del element
        start = time - (time - self.offset) % self.size
        return [TimeWindow(start, start + self.size)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.offset})"


class TumblingEventTimeWindows(_TumblingWindows, EventTimeAssigner[UserValue]):
    """Divides event time into windows of equal length.

        stream.key_by(lambda visit: visit.user) \\
            .window(TumblingEventTimeWindows.of(Time.hours(1)))

    (Flink: `TumblingEventTimeWindows`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingEventTimeWindows.of(10_000))
        >>> counts = windows.apply(lambda user, window, clicks: [(window.start, user, len(clicks))])
        >>> sorted(counts.execute_and_collect())
        [(0, 'ann', 2), (0, 'bob', 1), (10000, 'ann', 1)]
    """

    @staticmethod
    def of(size: DurationLike, offset: DurationLike | None = None) -> TumblingEventTimeWindows:
        """Return an assigner for windows of length `size`.

        Arguments:
            size: the length of a window.
            offset: windows begin at `offset + n * size` after the epoch. For windows from midnight
                to midnight in China, use `of(Time.days(1), Time.hours(-8))`.
        """
        return TumblingEventTimeWindows(size, 0 if offset is None else offset)


class TumblingProcessingTimeWindows(_TumblingWindows, ProcessingTimeAssigner[UserValue]):
    """Divides processing time into windows of equal length.

    (Flink: `TumblingProcessingTimeWindows`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(TumblingProcessingTimeWindows.of(5_000))
    """

    @staticmethod
    def of(size: DurationLike, offset: DurationLike | None = None) -> TumblingProcessingTimeWindows:
        """Return an assigner for windows of length `size`; see `TumblingEventTimeWindows.of`."""
        return TumblingProcessingTimeWindows(size, 0 if offset is None else offset)


class _SlidingWindows:
    """Divides time into windows of equal length that overlap.

    Arguments:
        size: the length of a window, in milliseconds.
        slide: the time between the starts of two windows, in milliseconds.
        offset: windows begin at `offset + n * slide` milliseconds after the epoch.
    """

    def __init__(self, size: DurationLike, slide: DurationLike, offset: DurationLike = 0) -> None:
        name = type(self).__name__
        self.size = milliseconds_of(f"the size of {name}", size, least=1)
        self.slide = milliseconds_of(f"the slide of {name}", slide, least=1)
        self.offset = milliseconds_of(f"the offset of {name}", offset, least=None)
        if abs(self.offset) >= self.slide:
            raise GraphError(
                f"the offset of {name} must be shorter than the slide of {self.slide} ms, and is "
                f"{self.offset} ms"
            )

    def windows_at(self, time: int, element: UserValue) -> list[TimeWindow]:
        """Return the windows that contain a time, the latest first.

        There is none if the slide is longer than the size and the time lies between two windows.
        """
        del element
        size, slide = self.size, self.slide
        last = time - (time - self.offset) % slide
        return [TimeWindow(start, start + size) for start in range(last, time - size, -slide)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.slide}, {self.offset})"


class SlidingEventTimeWindows(_SlidingWindows, EventTimeAssigner[UserValue]):
    """Divides event time into windows of equal length that overlap.

    (Flink: `SlidingEventTimeWindows`.)

    Examples:
        >>> SlidingEventTimeWindows.of(10, 5).assign_windows("record", 12, None)
        [TimeWindow(start=10, end=20), TimeWindow(start=5, end=15)]
    """

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike | None = None
    ) -> SlidingEventTimeWindows:
        """Return an assigner for windows of length `size` that begin every `slide`.

        Arguments:
            size: the length of a window.
            slide: the time between the starts of two windows.
            offset: windows begin at `offset + n * slide` after the epoch.
        """
        return SlidingEventTimeWindows(size, slide, 0 if offset is None else offset)


class SlidingProcessingTimeWindows(_SlidingWindows, ProcessingTimeAssigner[UserValue]):
    """Divides processing time into windows of equal length that overlap.

    (Flink: `SlidingProcessingTimeWindows`.)

    Examples:
        >>> last = SlidingProcessingTimeWindows.of(10_000, 5_000)
        >>> windows = clicks.key_by(lambda click: click[0]).window(last)
    """

    @staticmethod
    def of(
        size: DurationLike, slide: DurationLike, offset: DurationLike | None = None
    ) -> SlidingProcessingTimeWindows:
        """Return an assigner for windows of length `size` that begin every `slide`."""
        return SlidingProcessingTimeWindows(size, slide, 0 if offset is None else offset)
