"""Define the interface of window assigners, which choose the windows of a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Generic

from penstock.dataflow.state import RuntimeContext
from penstock.dataflow.type_variables import T_contra, UserValue
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import TimeWindow, W


class WindowAssigner(ABC, Generic[T_contra, W]):
    """Chooses the windows of each record. (Flink: `WindowAssigner`.)

    Examples:
        >>> class Halves(WindowAssigner):
        ...     def assign_windows(self, element, timestamp, context):
        ...         begin = 0 if timestamp < 5_000 else 5_000
        ...         return [TimeWindow(begin, begin + 5_000)]
        ...     def get_default_trigger(self, env):
        ...         return EventTimeTrigger.create()
        ...     def get_window_serializer(self):
        ...         return TimeWindowSerializer()
        ...     def is_event_time(self):
        ...         return True
        >>> windows = clicks.key_by(lambda click: "all").window(Halves())
        >>> list(windows.apply(lambda key, window, clicks: [len(clicks)]).execute_and_collect())
        [3, 1]
    """

    class WindowAssignerContext(ABC):
        """Gives an assigner access to the time of the clock and to keyed state."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the time of the clock, in milliseconds since the epoch."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Return the runtime context, whose state belongs to the key of the record."""

    @abstractmethod
    def assign_windows(
        self, element: T_contra, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """Return the windows of a record. Without a window, the record is dropped.

        Arguments:
            element: the record.
            timestamp: the timestamp of the record; `NO_TIMESTAMP` if it has none.
            context: gives access to the time of the clock and to keyed state.
        """

    @abstractmethod
    def get_default_trigger(self, env: UserValue = None) -> Trigger[T_contra, W]:
        """Return the trigger of a stream whose program sets none.

        It is called when the program is built, if that sets no trigger.

        Arguments:
            env: the environment of the program.
        """

    def get_window_serializer(self) -> object:
        """Return None: windows are named tuples, and need no serializer."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether windows are chosen by the timestamps of records."""


class MergingWindowAssigner(WindowAssigner[T_contra, W]):
    """A window assigner whose windows can merge, as sessions do.

    (Flink: `MergingWindowAssigner`.)

    Examples:
        >>> issubclass(EventTimeSessionWindows, MergingWindowAssigner)
        True
    """

    class MergeCallback(ABC):
        """Receives the windows that an assigner merges."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[UserValue], merge_result: UserValue) -> None:
            """Merge the windows `to_be_merged` into `merge_result`."""

    @abstractmethod
    def merge_windows(
        self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback
    ) -> None:
        """Find the windows of a key that must be merged.

        Arguments:
            windows: the windows of the key.
            callback: call its `merge` for each group of windows that become one.
        """


def merge_time_windows(
    windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback
) -> None:
    """Merge windows that overlap or touch. (Flink: `TimeWindow.mergeWindows`.)"""
    group: list[TimeWindow] = []
    covered: TimeWindow | None = None
    for window in sorted(windows):
        if covered is not None and covered.intersects(window):
            group.append(window)
            covered = covered.cover(window)
            continue
        if covered is not None and len(group) > 1:
            callback.merge(group, covered)
        group, covered = [window], window
    if covered is not None and len(group) > 1:
        callback.merge(group, covered)
