"""The input of a source task: splits that the JobManager assigns, and the positions in them.

A bounded source reads its splits one after the other (`SequentialSourceInput`). The splits of an
unbounded source may never end, so its task reads all of them at once, in turns
(`MultiplexedSourceInput` in `multiplexed_source`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.event_time.source_watermarks import SourceWatermarks
from penstock.runtime.operators.split_reader import (
    OffloadRead,
    Wait,
    make_split_reader,
)
from penstock.runtime.serialization.record_batch import RecordBatch

__all__ = ["SequentialSourceInput", "SourceInput"]


class SourceInput(ABC):
    """The splits of one source task, from which the task reads its records.

    Arguments:
        request: a function that requests a split from the JobManager. It is called again only after
            an answer.
    """

    #: Whether `pump` must run, because readers may block.
    pumping: bool

    def __init__(
        self, request: Callable[[], None], watermarks: SourceWatermarks | None = None
    ) -> None:
        self._request = request
        #: The event time of the source; None if it has no watermark strategy.
        self.watermarks = watermarks
        self._requested = False
        self._no_more = False

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no more splits will come."""

    @property
    @abstractmethod
    def wake_at(self) -> float | None:
        """Return the time at which the source has records again, in seconds.

        Return None if there may be records now, or if the time is unknown.
        """

    def restore(self, state: Any) -> None:
        """Add the splits that `snapshot` returned before a restart, with their positions."""
        for id, payload, position in state:
            self._add(Split(id, payload), position)

    @abstractmethod
    def snapshot(self) -> list[list[Any]]:
        """Return the id, the payload and the position of each unfinished split.

        The position is behind the last batch that the task has emitted.
        """

    def assign(self, split: Split, position: Any) -> None:
        """Add a split that the JobManager has assigned to this task."""
        self._requested = False
        self._add(split, position)

    def no_more(self) -> None:
        """Record that the JobManager has no more splits for this task."""
        self._no_more = self._requested = True

    @abstractmethod
    def read(self, max_records: int) -> RecordBatch | None:
        """Return at most `max_records` records, or None if there are none now.

        The list is empty if a reader was called and returned no records.
        """

    @abstractmethod
    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read the splits in threads, one batch ahead of the task, until cancelled.

        Arguments:
            offload: a function that runs a blocking read in a thread.
            wait: a function that waits until a condition holds. It checks the condition when the
                task is woken.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all readers, even while threads are blocked in their methods."""

    @abstractmethod
    def _add(self, split: Split, position: Any) -> None:
        """Add a split. The task reads it from `position`, or from its start if that is None."""

    def _request_split(self) -> None:
        if not self._requested:
            self._requested = True
            self._request()


class SequentialSourceInput(SourceInput):
    """The splits of one task of a bounded source, which are read one after the other.

    The next split is requested early, so that it is assigned before the current split ends.

    Arguments:
        reader: the source's reader.
        clock: a function that returns the time in seconds.
        request: a function that requests a split from the JobManager. It is called again only after
            an answer.
        wake: a function that wakes the task. It is called when the task has something to do.
    """

    def __init__(
        self,
        reader: SourceReader,
        clock: Callable[[], float],
        request: Callable[[], None],
        wake: Callable[[], None],
        watermarks: SourceWatermarks | None = None,
    ) -> None:
        super().__init__(request, watermarks)
        self._current = make_split_reader(reader, clock, wake, watermarks)
        self.pumping = self._current.pumping
        self._queue: deque[tuple[Split, Any]] = deque()

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no more splits will come."""
        return self._no_more and self._current.split is None and not self._queue

    @property
    def wake_at(self) -> float | None:
        """Return the time at which the current split has records again, in seconds.

        Return None if the reader has not returned such a time.
        """
        return self._current.wake_at

    def snapshot(self) -> list[list[Any]]:
        """Return the id, the payload and the position of each unfinished split."""
        splits = [[split.id, split.payload, position] for split, position in self._queue]
        current = self._current
        if current.split is not None:
            splits.insert(0, [current.split.id, current.split.payload, current.snapshot_position()])
        return splits

    def read(self, max_records: int) -> RecordBatch | None:
        """Return at most `max_records` records, or None if no records are ready."""
        current = self._current
        if current.split is None or not self._requested:
            self._advance()
            if current.split is None:
                return None
        records = current.read(max_records)
        if current.split is None:
            self._advance()
        return records

    def _add(self, split: Split, position: Any) -> None:
        self._queue.append((split, position))

    def _advance(self) -> None:
        """Open the next split if no split is open, and request a split if none is queued."""
        if self._current.split is None and self._queue:
            self._current.open(*self._queue.popleft())
        if not self._queue:
            self._request_split()

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read the split in a thread, one batch ahead of the task, until cancelled."""
        await self._current.pump(offload, wait)

    def close(self) -> None:
        """Close the reader, even while a thread is blocked in one of its methods."""
        self._current.close()
