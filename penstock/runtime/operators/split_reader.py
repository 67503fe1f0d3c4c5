"""Read one split at a time with a reader, in threads if the reader may block.

A snapshot contains the position behind the last *emitted* batch, but a thread may have read
further. So the records that a thread has read wait in a `SplitReader`. The position advances when
the task takes the records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.source import ColumnarRead, Read, SourceReader, Split, TimedRead
from penstock.runtime.operators.time.source_watermarks import (
    SourceWatermarks,
)
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.split_positions import join_position, split_position

ReadOrError = Read | TimedRead | BaseException
#: A function that runs a blocking read off the event loop, and abandons it when the job ends.
OffloadRead = Callable[[Callable[[], ReadOrError]], Awaitable[ReadOrError]]
#: A function that waits until a condition holds, or until a time if that is not None. It checks the
#: condition each time that it is woken.
Wait = Callable[[Callable[[], bool], float | None], Awaitable[None]]


class SplitReader:
    """Reads one split at a time with a reader, and holds the position in the split.

    Arguments:
        reader: the source's reader.
        clock: a function that returns the time in seconds.
        wake: a function that wakes the task and the pump. It is called when there is something to
            read or to take.
    """

    def __init__(
        self, reader: SourceReader, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._wake = wake
        #: The open split; None if there is no split, or if the split is read to its end.
        self.split: Split | None = None
        #: The id of the split that was opened last.
        self.split_id = ""
        #: Whether the reader has opened the split. It opens the split at the first read, so that
        #: errors of `SourceReader.open` are reported like errors of `read`.
        self._opened = False
        self._closed = False
        #: The position behind the last batch that the task took.
        self.position: Any = None
        #: The time at which the reader has records again, in seconds; 0 if it is unknown.
        self._due = 0.0
        #: The result of a read in a thread, until the task takes it.
        self._ahead: ReadOrError | None = None
        self._max_records = 1
        #: The watermark that the source has emitted with the last read; None if there is none.
        self.watermark: int | None = None
        #: The records of the last read for side outputs, until `SourceInput` takes them.
        self.side_output: Sequence[SideOutput] = ()
        #: Whether `pump` must run, because the reader may block.
        self.pumping = reader.blocking
        #: Whether the reader handles notices of complete snapshots.
        self.wants_notices = type(reader).snapshot_completed is not SourceReader.snapshot_completed

    @property
    def wake_at(self) -> float | None:
        """Return the time at which the reader has records again, in seconds.

        Return None if the time is unknown, or if `pump` runs, because `pump` waits for that time.
        """
        # The time is returned even if it is in the past. It may have passed since the last read
        # found no records, and with None the task would sleep until another event.
        return self._due if self.split is not None and self._due and not self.pumping else None

    def open(self, split: Split, position: Any) -> None:
        """Begin to read a split at `position`, or at its start if `position` is None."""
        # The snapshot may be of a program in which the source had a watermark strategy.
        self.split, self.position, self._due = split, split_position(position)[0], 0.0
        self.split_id = split.id
        self._opened = False
        if self.pumping:
            self._wake()  # The pump may be waiting for a split.

    def snapshot_position(self) -> Any:
        """Return the position for a snapshot."""
        return self.position

    def read(self, max_records: int) -> RecordBatch | None:
        """Return the next records of the open split, or None if there are none now.

        The position advances at once, because the task emits the records before it takes a barrier.
        """
        if self.pumping:
            self._max_records = max_records
            read, self._ahead = self._ahead, None
            if read is None:
                return None
            self._wake()
            if isinstance(read, BaseException):
                raise read
        else:
            if self._due and self._clock() < self._due:
                return None
            read = self._open_and_read(max_records)
        self.position = read.position
        self._due = self._clock() + read.wait_seconds if read.wait_seconds > 0 else 0.0
        if read.finished:
            self.split = None
        self.side_output = read.side_output
        if read.__class__ is Read:  # takes less time than `type(read)`
            return RecordBatch(read.records)
        if isinstance(read, ColumnarRead):
            return ArrowBatch(read.records)
        if not isinstance(read, TimedRead):
            return RecordBatch(read.records)
        self.watermark = read.watermark
        return RecordBatch(read.records, None, read.timestamps)

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read the split in a thread, one batch ahead of the task, until cancelled."""
        while True:
            await wait(lambda: self.split is not None and self._ahead is None, None)
            if self._due > self._clock():
                await wait(lambda: False, self._due)
            self._ahead = await offload(self._read_in_thread)
            self._wake()

    def _read_in_thread(self) -> ReadOrError:
        # The error is returned, not raised, so that its traceback has no frames of the thread.
        try:
            return self._open_and_read(self._max_records)
        except BaseException as error:
            return error

    def _open_and_read(self, max_records: int) -> Read:
        if not self._opened:
            assert self.split is not None
            self._reader.open(self.split, self.position)
            self._opened = True
            # The task may have ended while a thread opened the reader, or before.
            if self._closed:
                self._reader.close()
        return self._reader.read(max_records)

    def count_of(self, batch: RecordBatch) -> int:
        """Return how many records the reader has returned, given the batch of the last `read`."""
        return batch.count + len(self.side_output)

    def limit_ahead(self, max_records: int) -> None:
        """Limit the number of records that a thread reads ahead of the task."""
        self._max_records = max_records

    def woken(self) -> None:
        """Read the reader again, since it has asked for it."""
        self._due = 0.0
        self._wake()

    def snapshot_completed(self, position: Any) -> None:
        """Notify the reader that a snapshot with this position of the open split is complete."""
        if self._opened:
            self._reader.snapshot_completed(position)

    def close(self) -> None:
        """Close the reader, even while a thread is blocked in one of its methods."""
        self._closed = True
        self._reader.close()


class TimedSplitReader(SplitReader):
    """A split reader that gives the records event times.

    It does not read while the split is ahead of the other sources of its watermark group.

    Arguments:
        reader: the source's reader.
        clock: returns the time in seconds.
        wake: wakes the task and the pump.
        watermarks: the event time of the source task.
    """

    def __init__(
        self,
        reader: SourceReader,
        clock: Callable[[], float],
        wake: Callable[[], None],
        watermarks: SourceWatermarks,
    ) -> None:
        super().__init__(reader, clock, wake)
        self._watermarks = watermarks
        self._count = 0

    @property
    def wake_at(self) -> float | None:
        """Return the time at which the reader has records again; see `SplitReader`."""
        if self.split is None or self._watermarks.is_paused(self.split.id):
            return None
        return super().wake_at

    def open(self, split: Split, position: Any) -> None:
        """Begin to read a split, with the watermark that belongs to the position."""
        self._watermarks.open(split.id, split_position(position)[1])
        super().open(split, position)

    def snapshot_position(self) -> Any:
        """Return the position for a snapshot, with the state of the split's watermarks."""
        if self.split is None:
            return self.position
        return join_position(self.position, self._watermarks.snapshot(self.split.id))

    def read(self, max_records: int) -> RecordBatch | None:
        """Return the next records with their event times, or None if there are none now."""
        split = self.split
        if split is None or self._watermarks.is_paused(split.id):
            return None
        batch = super().read(max_records)
        self._count = 0 if batch is None else batch.count
        if batch is not None and batch.count:
            batch = self._watermarks.process(split.id, batch)
        if batch is not None and self.watermark is not None:
            self._watermarks.advance(split.id, self.watermark)
            self.watermark = None
        if self.split is None:
            self._watermarks.close(split.id)
        return batch

    def count_of(self, batch: RecordBatch) -> int:
        """Return how many records the reader has returned.

        The batch ends at the first watermark, and the other records follow it.
        """
        del batch
        return self._count + len(self.side_output)


def make_split_reader(
    reader: SourceReader,
    clock: Callable[[], float],
    wake: Callable[[], None],
    watermarks: SourceWatermarks | None,
) -> SplitReader:
    """Return a split reader for a source with or without a watermark strategy."""
    if watermarks is None:
        return SplitReader(reader, clock, wake)
    return TimedSplitReader(reader, clock, wake, watermarks)
