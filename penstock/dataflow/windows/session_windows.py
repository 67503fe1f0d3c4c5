"""Define session windows, which end when no record has arrived for a time: the gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.errors import JobError
from penstock.dataflow.type_variables import R, T_contra, UserValue
from penstock.dataflow.windows.time_windows import EventTimeAssigner, ProcessingTimeAssigner
from penstock.dataflow.windows.window import TimeWindow
from penstock.dataflow.windows.window_assigner import MergingWindowAssigner, merge_time_windows


class SessionWindowTimeGapExtractor(ABC, Generic[T_contra]):
    """Returns the gap of a record's session. (Flink: `SessionWindowTimeGapExtractor`.)

    Examples:
        >>> class Gap(SessionWindowTimeGapExtractor):
        ...     def extract(self, element):
        ...         return 5_000 if element[0] == "ann" else 1_000
        >>> sessions = EventTimeSessionWindows.with_dynamic_gap(Gap())
        >>> windows = clicks.key_by(lambda click: click[0]).window(sessions)
        >>> results = windows.apply(lambda user, window, clicks: [(user, len(clicks))])
        >>> list(results.execute_and_collect())
        [('bob', 1), ('ann', 2), ('ann', 1)]
    """

    @abstractmethod
    def extract(self, element: T_contra) -> int:
        """Return the gap that follows a record, in milliseconds; at least 1."""


Extractor = SessionWindowTimeGapExtractor[R] | Callable[[R], int]


class _SessionWindows(MergingWindowAssigner[T_contra, TimeWindow]):
    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback
    ) -> None:
        """Merge windows that overlap or touch."""
        merge_time_windows(windows, callback)


class _StaticGap(_SessionWindows[UserValue]):
    """Sessions with the same gap for all records.

    Arguments:
        gap: the gap, in milliseconds.
    """

    def __init__(self, gap: DurationLike) -> None:
        self.gap = milliseconds_of(f"the gap of {type(self).__name__}", gap, least=1)

    def windows_at(self, time: int, element: UserValue) -> list[TimeWindow]:
        """Return a window from the time of a record to the end of its gap."""
        del element
        return [TimeWindow(time, time + self.gap)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gap})"


class _DynamicGap(_SessionWindows[T_contra]):
    """Sessions with a gap that depends on the record.

    Arguments:
        extractor: returns the gap of a record.
    """

    def __init__(self, extractor: Extractor[T_contra]) -> None:
        if not isinstance(extractor, SessionWindowTimeGapExtractor):
            check_argument_count("with_dynamic_gap", extractor, 1, "(record)")
        self.extractor = extractor

    def windows_at(self, time: int, element: T_contra) -> list[TimeWindow]:
        """Return a window from the time of a record to the end of its gap."""
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
        return [TimeWindow(time, time + gap)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class DynamicEventTimeSessionWindows(_DynamicGap[T_contra], EventTimeAssigner[T_contra]):
    """Sessions by event time, with a gap that depends on the record.

    (Flink: `DynamicEventTimeSessionWindows`.)

    Examples:
        >>> sessions = DynamicEventTimeSessionWindows.with_dynamic_gap(lambda click: 5_000)
        >>> windows = clicks.key_by(lambda click: click[0]).window(sessions)
        >>> results = windows.apply(lambda user, window, clicks: [(user, len(clicks))])
        >>> list(results.execute_and_collect())
        [('bob', 1), ('ann', 2), ('ann', 1)]
    """

    @staticmethod
    def with_dynamic_gap(extractor: Extractor[R]) -> DynamicEventTimeSessionWindows[R]:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_DynamicGap[T_contra], ProcessingTimeAssigner[T_contra]):
    """Sessions by processing time, with a gap that depends on the record.

    (Flink: `DynamicProcessingTimeSessionWindows`.)

    Examples:
        >>> sessions = DynamicProcessingTimeSessionWindows.with_dynamic_gap(lambda click: 5_000)
        >>> windows = clicks.key_by(lambda click: click[0]).window(sessions)
    """

    @staticmethod
    def with_dynamic_gap(extractor: Extractor[R]) -> DynamicProcessingTimeSessionWindows[R]:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicProcessingTimeSessionWindows(extractor)


class EventTimeSessionWindows(_StaticGap, EventTimeAssigner[UserValue]):
    """Sessions by event time: a session ends when no record has arrived for the length of the gap.

    Two records whose timestamps differ by the gap or less belong to one session.
    (Flink: `EventTimeSessionWindows`.)

    Examples:
        >>> windows = clicks.key_by(lambda c: c[0]).window(EventTimeSessionWindows.with_gap(5_000))
        >>> results = windows.apply(lambda user, window, clicks: [(user, len(clicks))])
        >>> list(results.execute_and_collect())
        [('bob', 1), ('ann', 2), ('ann', 1)]
    """

    @staticmethod
    def with_gap(size: DurationLike) -> EventTimeSessionWindows:
        """Return an assigner with the given gap."""
        return EventTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: Extractor[R]) -> DynamicEventTimeSessionWindows[R]:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_StaticGap, ProcessingTimeAssigner[UserValue]):
    """Sessions by processing time. (Flink: `ProcessingTimeSessionWindows`.)

    Examples:
        >>> sessions = ProcessingTimeSessionWindows.with_gap(5_000)
        >>> windows = clicks.key_by(lambda click: click[0]).window(sessions)
    """

    @staticmethod
    def with_gap(size: DurationLike) -> ProcessingTimeSessionWindows:
        """Return an assigner with the given gap."""
        return ProcessingTimeSessionWindows(size)

    @staticmethod
    def with_dynamic_gap(extractor: Extractor[R]) -> DynamicProcessingTimeSessionWindows[R]:
        """Return an assigner whose gaps the extractor returns, in milliseconds."""
        return DynamicProcessingTimeSessionWindows(extractor)
