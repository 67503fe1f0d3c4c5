"""The methods of streams that assign timestamps and group records by windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.streams.building import add_timestamps, add_window, add_window_of_all
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy, check_watermark_strategy
from penstock.dataflow.type_variables import S_co, T_co
from penstock.dataflow.windows import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    WindowAssigner,
    WindowOperation,
)

__all__ = ["KeyedStreamWindows", "StreamWindows"]


class StreamWindows(Generic[T_co, S_co]):
    """Methods of all streams for event time and for windows without keys."""

    _environment: BaseEnvironment

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy[T_co]) -> S_co:
        """Give each record a timestamp, and generate watermarks.

        Watermarks from before this operator are dropped, except the last one at the end of the
        input.

        Arguments:
            watermark_strategy: how records get timestamps and watermarks.

        Raises:
            GraphError: if `watermark_strategy` is not a `WatermarkStrategy`.
        """
        method = "assign_timestamps_and_watermarks"
        check_watermark_strategy(watermark_strategy, method)
        if watermark_strategy is None:
            raise GraphError(f"{method} takes a WatermarkStrategy, not None")
        stream: S_co = self._transform(add_timestamps, watermark_strategy)
        return stream

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Group all records by windows. One subtask processes the windows.

        Arguments:
            window_assigner: chooses the windows of a record.
        """
        return self._window_all_of(window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> Any:
        """Group all records by windows of `size` records; see `KeyedStream.count_window`."""
        return self.window_all(count_windows(size, slide))

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""

    @abstractmethod
    def _window_all_of(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Return this stream, grouped by windows."""

    def _add_window_of_all(self, operation: WindowOperation) -> Any:
        """Add the operator of a window of all records, and return a stream with its output."""
        return self._transform(add_window_of_all, operation)


class KeyedStreamWindows:
    """Methods of keyed streams for windows."""

    _environment: BaseEnvironment

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Group the records of each key by windows.

            stream.key_by(lambda visit: visit.user) \\
                .window(EventTimeSessionWindows.with_gap(Time.minutes(30))) \\
                .reduce(lambda first, second: first.joined(second))

        Arguments:
            window_assigner: chooses the windows of a record.
        """
        return self._window_of(window_assigner)

    def count_window(self, size: int, slide: int = 0) -> Any:
        """Group the records of each key by windows of `size` records.

        A window emits its result when it is full.

        Arguments:
            size: the number of records of a window.
            slide: the number of records between the starts of two windows. With 0, windows do not
                overlap.
        """
        return self.window(count_windows(size, slide))

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""

    @abstractmethod
    def _window_of(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Return this stream, grouped by windows."""

    def _add_window(self, operation: WindowOperation) -> Any:
        """Add the operator of a window, and return a stream with its output."""
        return self._transform(add_window, operation)


def count_windows(size: int, slide: int) -> WindowAssigner[Any, CountWindow]:
    """Return the assigner for windows of a number of records."""
    if slide == 0:
        return CountTumblingWindowAssigner(size)
    return CountSlidingWindowAssigner(size, slide)
