"""The methods of streams that assign timestamps and group records by windows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorKind, Partitioning
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy, check_watermark_strategy
from penstock.dataflow.type_variables import S_co, T_co
from penstock.dataflow.windows import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    WindowAssigner,
    WindowOperation,
)

__all__ = ["KeyedStreamWindows", "StreamWindows", "name_of_window", "no_key"]


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
        kind = OperatorKind.TIMESTAMPS_AND_WATERMARKS
        stream: S_co = self._transform(kind, "Timestamps/Watermarks", watermark_strategy)
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
    def _transform(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""

    @abstractmethod
    def _repartition(self, partitioning: Partitioning) -> Any:
        """Return a stream of the same records with another partitioning."""

    @abstractmethod
    def _window_all_of(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Return this stream, grouped by windows."""

    def _add_window_of_all(self, operation: WindowOperation) -> Any:
        """Add the operator of a window of all records, and return a stream with its output."""
        gathered = self._repartition(Partitioning.GLOBAL)
        name = name_of_window(operation)
        stream = gathered._transform(OperatorKind.KEYED_WINDOW, name, operation, no_key)
        operator = stream._outputs[0].operator
        operator.parallelism = 1
        operator.non_parallel_reason = "a window of all records has one subtask"
        return stream


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
    def _keyed(self, kind: OperatorKind, name: str, function: Any) -> Any:
        """Add an operator with keyed state, and return a stream with its output."""

    @abstractmethod
    def _window_of(self, window_assigner: WindowAssigner[Any, Any]) -> Any:
        """Return this stream, grouped by windows."""

    def _add_window(self, operation: WindowOperation) -> Any:
        """Add the operator of a window, and return a stream with its output."""
        return self._keyed(OperatorKind.KEYED_WINDOW, name_of_window(operation), operation)


def count_windows(size: int, slide: int) -> WindowAssigner[Any, CountWindow]:
    """Return the assigner for windows of a number of records."""
    if slide == 0:
        return CountTumblingWindowAssigner(size)
    return CountSlidingWindowAssigner(size, slide)


def name_of_window(operation: WindowOperation) -> str:
    """Return the name of the operator of a window.

    It is part of the operator's derived uid. So it has no lengths: a program may change them, and
    keep its state.
    """
    return f"Window: {type(operation.assigner).__name__}"


def no_key(record: Any) -> None:
    """Return None, the key of all records of a stream without keys."""
    del record
