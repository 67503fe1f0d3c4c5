"""Combine the watermarks of the splits that a source task reads.

Each split has its own watermark generator, because records of different splits come in any order.
The watermark of the task is the minimum over its splits. (Flink: `WatermarkOutputMultiplexer`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, Watermark
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.runtime.network.elements import TimeElement, WatermarkStatus
from penstock.runtime.operators.time.timestamped_stream import TimestampedStream
from penstock.runtime.serialization.record_batch import RecordBatch


class SourceWatermarks:
    """The event time of one source task.

    Arguments:
        strategy: the watermark strategy of the source.
        operator: the name of the source in errors.
        interval_ms: the period of watermarks, in milliseconds; 0 for none.
        wall_clock: returns the time of the machine's clock, in milliseconds since the epoch.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        operator: str,
        interval_ms: int,
        wall_clock: Callable[[], int],
    ) -> None:
        self.alignment = strategy.alignment
        self._strategy, self._operator = strategy, operator
        self._interval, self._wall_clock = interval_ms, wall_clock
        self._splits: dict[str, TimestampedStream] = {}
        #: Stands for the task while it has no split, so that it can be idle. After the first split,
        #: it is the stream of the last split: its watermark may not be emitted yet.
        self._no_split = TimestampedStream(strategy, operator, wall_clock())
        #: The combined watermark, in milliseconds since the epoch.
        self.watermark = MIN_WATERMARK
        self.idle = False
        self._first_time: int | None = None
        #: The highest watermark up to which splits are read, in milliseconds since the epoch.
        self._limit = MAX_WATERMARK
        self.next_emission = wall_clock() + interval_ms if interval_ms else None
        self._add_behind: Callable[[RecordBatch | TimeElement], None] | None = None

    def connect(self, add_behind: Callable[[RecordBatch | TimeElement], None]) -> None:
        """Set the function that gets the records and watermarks after the batch of `process`."""
        self._add_behind = add_behind

    # ---- splits

    def open(self, split: str, state: Any) -> None:
        """Add a split, with the state of its watermarks from a snapshot or None."""
        stream = TimestampedStream(self._strategy, self._operator, self._wall_clock())
        if state is not None:
            stream.restore(state)
        self._splits[split] = stream

    def close(self, split: str) -> None:
        """Remove a split, which is read to its end."""
        closed = self._splits.pop(split, None)
        if closed is not None and not self._splits:
            self._no_split = closed

    def holder(self) -> str | None:
        """Return the split with the lowest watermark; None if no split is open and active."""
        active = [(one.watermark, split) for split, one in self._splits.items() if not one.idle]
        return min(active)[1] if active else None

    @property
    def has_watermarks(self) -> bool:
        """Whether the strategy generates watermarks, or the source has emitted one."""
        emitted = any(one.watermark > MIN_WATERMARK for one in self._splits.values())
        return self._strategy.has_watermarks or emitted

    @property
    def first_time(self) -> int | None:
        """The event time of the first record; None before it."""
        return self._first_time

    def snapshot(self, split: str) -> Any:
        """Return the state of a split's watermarks."""
        return self._splits[split].snapshot()

    def restore(self, watermark: int) -> None:
        """Restore the combined watermark, which is never lower from then on."""
        self.watermark = max(self.watermark, watermark)

    # ---- records

    def process(self, split: str, batch: RecordBatch) -> RecordBatch:
        """Give the records of a split event times.

        Returns:
            The records up to the first watermark among them. The function that was passed to
            `connect` gets the records and watermarks after them.
        """
        first: RecordBatch | None = None
        stream = self._splits[split]
        for piece, changed in stream.process(batch):
            if first is None:
                first = piece
            else:
                self._put(piece)
            if changed:
                for element in self._combine():
                    self._put(element)
        assert first is not None
        if self._first_time is None:
            self._first_time = stream.first_time
        return first

    def advance(self, split: str, watermark: int) -> None:
        """Handle a watermark that the source has emitted after the last batch of a split."""
        if self._splits[split].advance(watermark):
            for element in self._combine():
                self._put(element)

    def _put(self, element: RecordBatch | TimeElement) -> None:
        assert self._add_behind is not None
        self._add_behind(element)

    def emit_periodically(self, now: int) -> list[TimeElement]:
        """Call the generators of all splits, and return the changes of the watermark and status."""
        if not self._interval:
            return []
        self.next_emission = now + self._interval
        for split, stream in self._splits.items():
            stream.emit_periodically(now, self.is_paused(split))
        if not self._splits:
            self._no_split.emit_periodically(now)
        return self._combine()

    def _combine(self) -> list[TimeElement]:
        streams = self._splits.values() or [self._no_split]
        active = [stream.watermark for stream in streams if not stream.idle]
        if not active:
            if self.idle:
                return []
            self.idle = True
            return [WatermarkStatus(idle=True)]
        out: list[TimeElement] = []
        if self.idle:
            self.idle = False
            out.append(WatermarkStatus(idle=False))
        if (lowest := min(active)) > self.watermark:
            self.watermark = lowest
            out.append(Watermark(lowest))
        return out

    # ---- alignment

    def set_limit(self, watermark: int) -> None:
        """Set the watermark up to which splits are read; see `WatermarkAlignment`."""
        self._limit = watermark

    def is_paused(self, split: str) -> bool:
        """Return whether a split is not read now, because it is ahead of other sources."""
        stream = self._splits.get(split)
        return stream is not None and stream.watermark > self._limit
