"""Define watermark generators, which decide when event time advances.

A generator sees the timestamp of each record, and emits watermarks: either when it sees a record
(a *punctuated* generator), or when the engine asks for one periodically. The period is 200 ms by
default (`StreamExecutionEnvironment.get_config().set_auto_watermark_interval`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from penstock.dataflow.time.watermark import MIN_WATERMARK, Watermark
from penstock.dataflow.type_variables import T_contra, UserValue


class WatermarkOutput(ABC):
    """Receives the watermarks of a generator. (Flink: `WatermarkOutput`.)

    Examples:
        >>> class AfterEachRecord(WatermarkGenerator):
        ...     def on_event(self, event, event_timestamp, output):  # a WatermarkOutput
        ...         output.emit_watermark(Watermark(event_timestamp - 1))
        ...     def on_periodic_emit(self, output):
        ...         output.mark_idle()
        >>> strategy = WatermarkStrategy.for_generator(AfterEachRecord)
    """

    @abstractmethod
    def emit_watermark(self, watermark: Watermark) -> None:
        """Emit a watermark. The output then is active.

        A watermark that is not higher than the last one is dropped.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Mark the output as idle: operators do not wait for its watermarks."""

    @abstractmethod
    def mark_active(self) -> None:
        """Mark the output as active again."""


class WatermarkGenerator(ABC, Generic[T_contra]):
    """Generates the watermarks of a stream. (Flink: `WatermarkGenerator`.)

    Each split of a source has a generator of its own; so has each subtask of
    `assign_timestamps_and_watermarks`.

    Examples:
        >>> class AfterEachRecord(WatermarkGenerator):
        ...     def on_event(self, event, event_timestamp, output):
        ...         output.emit_watermark(Watermark(event_timestamp - 1))
        ...     def on_periodic_emit(self, output):
        ...         pass
        >>> strategy = WatermarkStrategy.for_generator(AfterEachRecord)
    """

    @abstractmethod
    def on_event(self, event: T_contra, event_timestamp: int, output: WatermarkOutput) -> None:
        """Observe a record. A punctuated generator emits its watermarks here.

        Arguments:
            event: the record.
            event_timestamp: its timestamp, in milliseconds since the epoch.
            output: receives the watermarks.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, if there is a new one. The engine calls this periodically."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Assumes that records are out of order by a limited time.

    The watermark is the highest timestamp so far, less the limit, less 1 ms.
    (Flink: `BoundedOutOfOrdernessWatermarks`.)

    Arguments:
        max_out_of_orderness: the limit, in milliseconds.

    Examples:
        >>> make = lambda: BoundedOutOfOrdernessWatermarks(5_000)
        >>> strategy = WatermarkStrategy.for_generator(make)
    """

    def __init__(self, max_out_of_orderness: int) -> None:
        self.max_out_of_orderness = max_out_of_orderness
        #: The highest timestamp so far. The first watermark is `MIN_WATERMARK`.
        self.max_timestamp = MIN_WATERMARK + max_out_of_orderness + 1

    def on_event(self, event: UserValue, event_timestamp: int, output: WatermarkOutput) -> None:
        """Observe the timestamp of a record."""
        del event, output
        self.max_timestamp = max(self.max_timestamp, event_timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the watermark that belongs to the highest timestamp so far."""
        output.emit_watermark(Watermark(self.max_timestamp - self.max_out_of_orderness - 1))


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Assumes that timestamps never descend. (Flink: `AscendingTimestampsWatermarks`.)

    Examples:
        >>> strategy = WatermarkStrategy.for_generator(AscendingTimestampsWatermarks)
    """

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Generates no watermarks. (Flink: `NoWatermarksGenerator`.)

    Examples:
        >>> strategy = WatermarkStrategy.for_generator(NoWatermarks)
    """

    def on_event(self, event: UserValue, event_timestamp: int, output: WatermarkOutput) -> None:
        """Do nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Do nothing."""
