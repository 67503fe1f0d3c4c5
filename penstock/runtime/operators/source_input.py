"""The input of a source task: splits that the JobManager assigns, and the positions in them.

Open splits are read in turns: each read of the task returns records of the next split that has
records. A task opens a split in two cases:

* The source reads its splits in turns (`Source.reads_in_turns`), so a split is opened as soon as it
  is assigned.
* A split that an earlier run has begun is opened when it is restored. Its records have come between
  those of other splits, so its event time must hold the watermark together with theirs.

The other splits are read one after the other. (Flink: a source reader that reads several splits.)
A slow task must not hold a split that another task could read. So a task requests its next split
only when it has none, or early if its last split took a short time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.split_reader import (
    OffloadRead,
    ReadOrError,
    SplitReader,
    Wait,
    make_split_reader,
)
from penstock.runtime.operators.time.source_watermarks import SourceWatermarks
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.system.signal import Signal

#: The next split is requested early after a split that took less time, in seconds. After a longer
#: one, the time for the request does not matter.
QUICK_SECONDS = 0.2


@dataclass(eq=False)
class _Reading:
    """A reader with its open split, and the pump that runs if the reader blocks."""

    reader: SplitReader
    signal: Signal
    #: The time at which the split was opened, in seconds.
    opened: float = 0.0
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
        #: Whether the last split took a short time.
        self._quick = False
        #: The time for which threads have read splits that are read one after the other, in
        #: seconds. Those that are read in turns may only have waited for records.
        self.reading_seconds = 0.0
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
        #: The only split that is read now; None if all are. Set while a task repeats its reads.
        self.turn: str | None = None
        #: The splits from which records have come, with their numbers, until `take_reads`; None if
        #: they are not noted.
        self._reads: list[tuple[str, int]] | None = None
        #: The records for side outputs that reads have returned, until the task emits them.
        self.side_output: list[SideOutput] = []
        #: Whether `pump` must run, because readers may block.
        self.pumping = self._free[0].reader.pumping
        #: Whether the readers handle notices of complete snapshots.
        self._notices = self._free[0].reader.wants_notices
        #: The readers with their splits and positions in each snapshot that is not complete.
        self._captured: dict[int, list[tuple[SplitReader, Split, Any]]] = {}

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no more splits will come."""
        return self._no_more and not self._open and not self._waiting

    @property
    def open_splits(self) -> list[str]:
        """Return the ids of the splits that are being read."""
        splits = (reading.reader.split for reading in self._open)
        return [split.id for split in splits if split is not None]

    @property
    def wake_at(self) -> float | None:
        """Return the earliest time at which a split has records again, in seconds.

        Return None if a split may have records now, or if there is no split.
        """
        earliest: float | None = None
        for reading in self._open:
            if self.turn is not None and not self._has_turn(reading.reader):
                continue
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

    def capture(self, number: int) -> list[list[Any]]:
        """Return the state for snapshot `number`, and remember it until the snapshot is over."""
        if self._notices:
            readers = (reading.reader for reading in self._open)
            self._captured[number] = [
                (one, one.split, one.position) for one in readers if one.split
            ]
        return self.snapshot()

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

    def snapshot_completed(self, number: int) -> None:
        """Notify the readers that a snapshot is complete."""
        for reader, split, position in self._captured.get(number, ()):
            if reader.split is split:
                reader.snapshot_completed(position)
        self._captured = {n: held for n, held in self._captured.items() if n > number}

    def snapshot_aborted(self, number: int) -> None:
        """Forget the positions in an aborted snapshot."""
        self._captured.pop(number, None)

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
            if self.turn is not None and not self._has_turn(reader):
                splits.rotate(-1)
                continue
            batch = reader.read(max_records)
            if self._reads is not None and batch is not None:
                self._reads.append((reader.split_id, reader.count_of(batch)))
            if reader.side_output:
                self.side_output += reader.side_output
                reader.side_output = ()
            if reader.split is None:
                self._finish(splits.popleft())
            else:
                splits.rotate(-1)
            if batch is not None:
                if batch.count:
                    return batch
                empty = batch
        return empty

    def _has_turn(self, reader: SplitReader) -> bool:
        return reader.split is not None and reader.split.id == self.turn

    def note_reads(self) -> None:
        """Note from now on from which splits records come."""
        self._reads = []

    def take_reads(self) -> list[tuple[str, int]]:
        """Remove and return the splits of the last reads, with the numbers of their records."""
        assert self._reads is not None
        taken, self._reads = self._reads, []
        return taken

    def limit_ahead(self, split: str, max_records: int) -> None:
        """Limit the number of records of a split that a thread reads ahead of the task."""
        for reading in self._open:
            if reading.reader.split is not None and reading.reader.split.id == split:
                reading.reader.limit_ahead(max_records)

    def take_side_output(self) -> list[SideOutput]:
        """Remove and return the records for side outputs, which the task emits at once."""
        taken, self.side_output = self.side_output, []
        return taken

    def _finish(self, reading: _Reading) -> None:
        """Handle the end of the split of a reader."""
        if self._in_turns:
            reading.close()
        else:
            self._quick = self._clock() - reading.opened < QUICK_SECONDS
            self._free.append(reading)
            self._advance()

    def _advance(self) -> None:
        """Open the next split if no split is open, and request a split if none is waiting.

        If splits are short, the next one is requested early, so that it is assigned before the
        current one ends.
        """
        if self._waiting and not self._open:
            self._open_split(*self._waiting.popleft())
        early = self._in_turns or self._quick
        if not self._waiting and not self._requested and (early or not self._open):
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
        reading.opened = self._clock()
        self._open.append(reading)

    def _new_reading(self) -> _Reading:
        signal = Signal()

        def wake() -> None:
            signal.set()
            self._wake()

        created = self._create_reader()
        reader = make_split_reader(created, self._clock, wake, self.watermarks)
        if type(created).use_wake is not SourceReader.use_wake:
            created.use_wake(_from_threads(reader.woken))
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

        async def measured(read: Callable[[], ReadOrError]) -> ReadOrError:
            began = self._clock()
            try:
                return await offload(read)
            finally:
                self.reading_seconds += self._clock() - began

        async with trio.open_nursery() as nursery:
            while True:
                await wait(lambda: bool(self._unstarted), None)
                while self._unstarted:
                    reading = self._unstarted.pop(0)
                    nursery.start_soon(reading.pump, offload if self._in_turns else measured)

    def close(self) -> None:
        """Close all readers, even if one of them raises an error or blocks a thread."""
        with ExitStack() as stack:
            for reading in (*self._free, *self._open):
                stack.callback(reading.close)


def _from_threads(function: Callable[[], None]) -> Callable[[], None]:
    """Return a function that any thread may call, to run `function` in this event loop."""
    run_soon = trio.lowlevel.current_trio_token().run_sync_soon

    def call() -> None:
        with suppress(trio.RunFinishedError):
            run_soon(function, idempotent=True)

    return call
