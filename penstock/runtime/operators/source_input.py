"""The input of a source task: splits that the JobManager assigns, and the positions in them.

Open splits are read in turns: each read of the task returns records of the next split that has
records. A task opens a split in two cases:

* The source reads its splits in turns (`Source.reads_in_turns`), so a split is opened as soon as it
  is assigned.
* A split that an earlier run has begun is opened when it is restored. Its records have come between
  those of other splits, so its event time must hold the watermark together with theirs.

The other splits are read one after the other. (Flink: a source reader that reads several splits.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.split_reader import (
    OffloadRead,
    SplitReader,
    Wait,
    make_split_reader,
)
from penstock.runtime.operators.time.source_watermarks import SourceWatermarks
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.system.signal import Signal


@dataclass(eq=False)
class _Reading:
    """A reader with its open split, and the pump that runs if the reader blocks."""

    reader: SplitReader
    signal: Signal
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def pump(self, offload: OffloadRead) -> None:
        with self.scope:
            await self.reader.pump(offload, self.signal.wait_for)

    def close(self) -> None:
        self.scope.cancel()
        self.reader.close()


class SourceInput:
    """The splits of one source task, from which the task reads its records.

    Arguments:
        create_reader: a function that creates a reader. A reader has one split at a time.
        clock: a function that returns the time in seconds.
        request: a function that requests a split from the JobManager. It is called again only after
            an answer.
        wake: a function that wakes the task. It is called when the task has something to do.
        watermarks: the event time of the source; None if it has no watermark strategy.
        in_turns: whether each split is opened as soon as it is assigned.
    """

    def __init__(
        self,
        create_reader: Callable[[], SourceReader],
        clock: Callable[[], float],
        request: Callable[[], None],
        wake: Callable[[], None],
        watermarks: SourceWatermarks | None = None,
        *,
        in_turns: bool,
    ) -> None:
        self.watermarks = watermarks
        self._create_reader = create_reader
        self._clock, self._request, self._wake = clock, request, wake
        self._in_turns = in_turns
        self._requested = False
        self._no_more = False
        #: The readers with an open split. The next read begins with the first one.
        self._open: deque[_Reading] = deque()
        #: The splits that are not open yet, with their positions.
        self._waiting: deque[tuple[Split, Any]] = deque()
        #: The readers without a split. The first one is created early, to find out whether the
        #: source's readers block.
        self._free: list[_Reading] = []
        #: The readers whose pumps are not started yet.
        self._unstarted: list[_Reading] = []
        self._free.append(self._new_reading())
        #: Whether `pump` must run, because readers may block.
        self.pumping = self._free[0].reader.pumping

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no more splits will come."""
        return self._no_more and not self._open and not self._waiting

    @property
    def wake_at(self) -> float | None:
        """Return the earliest time at which a split has records again, in seconds.

        Return None if a split may have records now, or if there is no split.
        """
        earliest: float | None = None
        for reading in self._open:
            time = reading.reader.wake_at
            if time is None:
                return None
            if earliest is None or time < earliest:
                earliest = time
        return earliest

    def restore(self, state: Any) -> None:
        """Add the splits that `snapshot` returned before a restart, with their positions."""
        for id, payload, position in state:
            self._add(Split(id, payload), position)

    def snapshot(self) -> list[list[Any]]:
        """Return the id, the payload and the position of each unfinished split.

        The position is behind the last batch that the task has emitted.
        """
        splits = []
        for reading in self._open:
            split = reading.reader.split
            assert split is not None
            splits.append([split.id, split.payload, reading.reader.snapshot_position()])
        return splits + [[split.id, split.payload, at] for split, at in self._waiting]

    def assign(self, split: Split) -> None:
        """Add a split that was assigned to this task, which reads it from its start."""
        self._requested = False
        self._add(split, None)

    def no_more(self) -> None:
        """Record that the JobManager has no more splits for this task."""
        self._no_more = self._requested = True

    def read(self, max_records: int) -> RecordBatch | None:
        """Read the next split that has records, and return at most `max_records` records.

        Returns:
            None if no split has records now. The batch is empty if a reader was called and returned
            no records.
        """
        if not self._requested or not self._open:
            self._advance()
        splits, empty = self._open, None
        for _ in range(len(splits)):
            reader = splits[0].reader
            batch = reader.read(max_records)
            if reader.split is None:
                self._finish(splits.popleft())
            else:
                splits.rotate(-1)
            if batch is not None:
                if batch.count:
                    return batch
                empty = batch
        return empty

    def _finish(self, reading: _Reading) -> None:
        """Handle the end of the split of a reader."""
        if self._in_turns:
            reading.close()
        else:
            self._free.append(reading)
            self._advance()

    def _advance(self) -> None:
        """Open the next split if no split is open, and request a split if none is waiting.

        The next split is requested early, so that it is assigned before the current split ends.
        """
        if self._waiting and not self._open:
            self._open_split(*self._waiting.popleft())
        if not self._waiting and not self._requested:
            self._requested = True
            self._request()

    def _add(self, split: Split, position: Any) -> None:
        # The first split is opened at once, so that it counts as begun in all snapshots.
        if self._in_turns or position is not None or not self._open:
            self._open_split(split, position)
        else:
            self._waiting.append((split, position))

    def _open_split(self, split: Split, position: Any) -> None:
        reading = self._free.pop() if self._free else self._new_reading()
        reading.reader.open(split, position)
        self._open.append(reading)

    def _new_reading(self) -> _Reading:
        signal = Signal()

        def wake() -> None:
            signal.set()
            self._wake()

        reader = make_split_reader(self._create_reader(), self._clock, wake, self.watermarks)
        reading = _Reading(reader, signal)
        if reader.pumping:
            self._unstarted.append(reading)
            self._wake()
        return reading

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read each open split in threads, one batch ahead of the task, until cancelled.

        Arguments:
            offload: a function that runs a blocking read in a thread.
            wait: a function that waits until a condition holds. It checks the condition when the
                task is woken.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await wait(lambda: bool(self._unstarted), None)
                while self._unstarted:
                    nursery.start_soon(self._unstarted.pop(0).pump, offload)

    def close(self) -> None:
        """Close all readers, even if one of them raises an error or blocks a thread."""
        with ExitStack() as stack:
            for reading in (*self._free, *self._open):
                stack.callback(reading.close)
