"""Define session windows, which end when no record has come for a time: the gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.errors import JobError
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.windows.time_triggers import EventTimeTrigger, ProcessingTimeTrigger
from penstock.dataflow.windows.time_windows import without_timestamp
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import TimeWindow
from penstock.dataflow.windows.window_assigner import (
    MergingWindowAssigner,
    WindowAssigner,
    merge_time_windows,
)

__all__ = [
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
]


class SessionWindowTimeGapExtractor(ABC):
    """Returns the gap of a record's session. (Flink: `SessionWindowTimeGapExtractor`.)"""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap that follows a record, in milliseconds; at least 1."""


Extractor = SessionWindowTimeGapExtractor | Callable[[Any], int]


class _SessionWindows(MergingWindowAssigner):
    def merge_windows(
        self, windows: Iterable[Any], callback: MergingWindowAssigner.MergeCallback
    ) -> None:
        """Merge windows that overlap or touch."""
        merge_time_windows(windows, callback)


class _EventTimeSessions(_SessionWindows):
    """Assigns a window that begins at the timestamp of the record."""

    @abstractmethod
    def gap_of(self, element: Any) -> int:
        """Return the gap that follows a record, in milliseconds."""

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return a window from the timestamp of the record to the end of its gap."""
        del context
        if timestamp == NO_TIMESTAMP:
            raise without_timestamp(self)
        return [TimeWindow(timestamp, timestamp + self.gap_of(element))]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return an `EventTimeTrigger`."""
        del env
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """Return True."""
        return True


class _ProcessingTimeSessions(_SessionWindows):
    """Assigns a window that begins at the time of the clock."""

    @abstractmethod
    def gap_of(self, element: Any) -> int:
        """Return the gap that follows a record, in milliseconds."""

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """Return a window from the time of the clock to the end of the record's gap."""
        del timestamp
        now = context.get_current_processing_time()
        return [TimeWindow(now, now + self.gap_of(element))]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return a `ProcessingTimeTrigger`."""
        del env
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class _StaticGap:
    """The same gap for all records.

    Arguments:
        gap: the gap, in milliseconds.
    """

    def __init__(self, gap: DurationLike) -> None:
        self.gap = milliseconds_of(f"the gap of {type(self).__name__}", gap, least=1)

    def gap_of(self, element: Any) -> int:
        """Return the gap, in milliseconds."""
        del element
        return self.gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gap})"


class _DynamicGap:
    """A gap that depends on the record.

    Arguments:
        extractor: returns the gap of a record.
    """

    def __init__(self, extractor: Extractor) -> None:
        if not isinstance(extractor, SessionWindowTimeGapExtractor):
            check_argument_count("with_dynamic_gap", extractor, 1, "(record)")
        self.extractor = extractor

    def gap_of(self, element: Any) -> int:
        """Return the gap that follows a record, in milliseconds."""
        extractor = self.extractor
        if isinstance(extractor, SessionWindowTimeGapExtractor):
            gap = extractor.extract(element)
        else:
            gap = extractor(element)
        if not isinstance(gap, int) or gap < 1:
            raise JobError(
                f"the gap of a session is a whole number of milliseconds of at least 1, and the "
                f"extractor of {type(self).__name__} returned {gap!r}"
            )
        return gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class DynamicEventTimeSessionWindows(_DynamicGap, _EventTimeSessions):
    """Sessions by event time, with a gap that depends on the record.

    (Flink: `DynamicEventTimeSessionWindows`.)
    """

    @staticmethod
    def with_dynamic_gap(extractor: Extractor) -> DynamicEventTimeSessionWindows:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_DynamicGap, _ProcessingTimeSessions):
    """Sessions by processing time, with a gap that depends on the record.

    (Flink: `DynamicProcessingTimeSessionWindows`.)
    """

    @staticmethod
    def with_dynamic_gap(extractor: Extractor) -> DynamicProcessingTimeSessionWindows:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicProcessingTimeSessionWindows(extractor)


class EventTimeSessionWindows(_StaticGap, _EventTimeSessions):
    """Sessions by event time: a session ends when no record has come for the gap.

    Two records whose timestamps differ by the gap or less belong to one session.
    (Flink: `EventTimeSessionWindows`.)
    """

    @staticmethod
    def with_gap(size: DurationLike) -> EventTimeSessionWindows:
        """Return an assigner with the given gap."""
        return EventTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: Extractor) -> DynamicEventTimeSessionWindows:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_StaticGap, _ProcessingTimeSessions):
    """Sessions by processing time. (Flink: `ProcessingTimeSessionWindows`.)"""

    @staticmethod
    def with_gap(size: DurationLike) -> ProcessingTimeSessionWindows:
        """Return an assigner with the given gap."""
        return ProcessingTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: Extractor) -> DynamicProcessingTimeSessionWindows:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicProcessingTimeSessionWindows(extractor)
