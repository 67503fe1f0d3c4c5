"""Decide how many records a task processes at once, and how many may be in flight to it.

The sizes are computed from the durations of past slices, and from the time for which their output
waited for credits. The task measures these times. (Flink: buffer debloating.)

`docs/inside/decisions/029-work-in-a-channel.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections.abc import Callable

#: The intended duration of a slice, in seconds. The engine gets control after each slice. The
#: output of a slice is then still in the processor's cache when the next operator takes it. A
#: batch has the same duration. Smaller batches cost more per record; with larger batches, barriers
#: wait longer.
SLICE_SECONDS = 0.001
#: A long slice may be an exception, because another process has interrupted the task. A slice that
#: is longer than this multiple of `SLICE_SECONDS` does not count as an exception.
INTERRUPTED = 8
#: The maximum number of records in a slice. Larger slices would not reduce the cost of a record,
#: and a source would hold more records when a function behind it becomes slow.
MOST = 1 << 13
#: The same two limits for a task that processes columns. A call there costs 0.3 ms or much more,
#: and a row some 20 ns.
COLUMNS_SECONDS, MOST_ROWS = 0.004, 1 << 16
#: The default time for processing the records that are in flight between two tasks, in seconds.
TARGET_SECONDS = 0.1
#: The number of equal parts of the target time. The sender holds records for one part, and the
#: receiver for another. The other parts are for records in transit, and for wrong estimates.
PARTS = 8
#: A task processes records of this share of a slice's duration at once, if the receivers of its
#: output want as many. So the fixed cost of a batch is a small part of its work, even if the task
#: gets little of the processor. If a receiver is slow, it wants few records, and so does the task.
LEAST_SHARE = 1 / 5
#: The first value, the largest growth factor and the lower bound of an estimate: the number of
#: records that the task processes in one part of the target time.
FIRST, GROWTH, LEAST = 64.0, 8, 1 / 16
#: The period of the long-term average, in seconds. The average limits the sizes after a series of
#: cheap records.
AVERAGE_SECONDS = 1.0


class BatchSizer:
    """Computes the sizes of slices and batches of one task.

    `slice` is the number of records that the task processes in one slice. `batch` is the number of
    records in a batch for senders into back-edges, which never wait. `wanted` returns the sizes
    for all other senders.

    Arguments:
        target: the intended time for processing all records in flight to the task, in seconds.
        output_records: returns the number of records that all receivers of the task's output want
            in a batch, at least.
    """

    def __init__(
        self, target: float = TARGET_SECONDS, output_records: Callable[[], int] = lambda: 1
    ) -> None:
        self._output_records = output_records
        # Sizes start at their minimum, because the duration of a record is not known yet.
        self.slice = 1
        self.batch = 1
        self._fit = 1
        self._slice_seconds, self._most = SLICE_SECONDS, MOST
        #: The duration from which on a slice does not count as interrupted.
        self._uninterrupted = INTERRUPTED * SLICE_SECONDS
        self._part = target / PARTS
        self._least_seconds = LEAST_SHARE * SLICE_SECONDS
        #: The estimated number of records that the task processes in `target / PARTS` seconds.
        self._done = FIRST
        #: The lower bound of this estimate.
        self._least = LEAST
        #: The number of records in the slices that are not counted yet, and the duration of these
        #: slices in seconds.
        self._new, self._new_seconds = 0, 0.0
        #: The number of records and the duration of the slices that were counted last. The duration
        #: includes the time for which their output waited.
        self._last, self._last_seconds = 1, 0.0
        #: The sums of records and of seconds over all slices. Older slices have less weight.
        #: `_seconds` includes the time for which output waited, and `_work_seconds` does not.
        self._records = self._seconds = self._work_seconds = 0.0

    def took(self, records: int, seconds: float) -> bool:
        """Adjust the sizes of batches and slices to the duration of the last slice.

        Arguments:
            records: the number of records in the slice.
            seconds: the duration of the slice.

        Returns:
            Whether the new sizes should be sent to the senders now.
        """
        if seconds < 1e-7:
            seconds = 1e-7
        fit = int(self._slice_seconds * records / seconds) or 1
        # Sizes shrink at once, but at most by half if the slice may have been interrupted. The
        # size of a slice at most doubles, and only after a full slice.
        if fit < self._fit or fit < self.batch:
            half = 2 if seconds < self._uninterrupted else 1 << 30
            self.batch = max(fit, self.batch // half)
            if fit < self._fit:
                self._fit = max(fit, self._fit // half)
                self.slice = min(self.slice, self._fit)
        else:
            self.batch = fit
        if fit > self._fit and records >= self.slice:
            self._fit = min(fit, self._fit * 2, self._most)
            self._resize_slice()
        self._new += records
        self._new_seconds += seconds
        if self._new < self._done and self._new_seconds < self._slice_seconds:
            return False
        self._work_seconds += self._new_seconds
        self._count(self._done * GROWTH)
        return True

    def limit_slice(self, records: int) -> None:
        """Process at most `records` records in the next slice."""
        self.slice = min(self.slice, records)

    def waited(self, seconds: float) -> None:
        """Adjust the sizes to the time for which the output of the last slices has waited."""
        self._work_seconds += self._new_seconds
        self._new_seconds += seconds
        self._count(self._done)

    def keep_for_write(self, records: int) -> None:
        """Let at least twice as many records be in flight as a slow write of a sink had.

        Otherwise a write that takes longer than the target time would soon have one record: few
        records in flight make a small write, and small writes make the task slow.
        """
        self._least = max(LEAST, 2 * records / (PARTS // 2))

    def _count(self, done: float) -> None:
        """Add the new slices to the sums, and estimate `_done`, which is at most `done`."""
        records, seconds = self._new, self._new_seconds
        self._new, self._new_seconds = 0, 0.0
        if records:
            self._last, self._last_seconds = records, 0.0
        last = self._last_seconds = self._last_seconds + seconds
        keep = AVERAGE_SECONDS / (AVERAGE_SECONDS + seconds)
        self._records = (self._records + records) * keep
        self._seconds = (self._seconds + seconds) * keep
        self._work_seconds *= keep
        if done > (now := self._last * self._part / last):
            done = now
        if done > (average := self._records * self._part / self._seconds):
            done = average
        self._done = done if done > self._least else self._least
        self._resize_slice()

    def _resize_slice(self) -> None:
        self.slice = self._fit if self._fit < self._done else self._reduced(self._fit, self._done)

    def _reduced(self, size: int, most: float) -> int:
        """Reduce a number of records to `most`, but not below the smallest useful batch."""
        least = 0
        if self._work_seconds:
            least = int(self._least_seconds * self._records / self._work_seconds)
        if least > most:
            least = min(least, self._output_records())
        return min(size, max(int(most), least)) or 1

    def wanted(self, channels: int) -> tuple[int, int]:
        """Return the number of records in a batch, and of batches in flight per channel.

        Arguments:
            channels: the number of channels that share the records in flight.
        """
        share = self._done / channels
        batch = self.batch
        if batch > share:
            batch = self._reduced(batch, share)
        return batch, int(share * (PARTS // 2) / batch) or 1


class ColumnBatchSizer(BatchSizer):
    """Computes the sizes of slices and batches of a task that processes columns.

    Each call of a columnar function has a fixed cost, for any number of rows. Smaller slices would
    not save this time, so the sizes are computed from the rest of a slice's duration. Otherwise a
    function that takes 20 ms for each batch would soon get batches of one row.

    Arguments:
        target: the intended time for processing all rows in flight to the task, in seconds.
        output_records: as in `BatchSizer`.
    """

    def __init__(
        self, target: float = TARGET_SECONDS, output_records: Callable[[], int] = lambda: 1
    ) -> None:
        super().__init__(target, output_records)
        self._slice_seconds, self._most = COLUMNS_SECONDS, MOST_ROWS
        self._uninterrupted = INTERRUPTED * COLUMNS_SECONDS
        #: The duration of the shortest slice, in seconds, as an estimate of the fixed cost.
        self._fixed_seconds = float("inf")

    def took(self, records: int, seconds: float) -> bool:
        """Adjust the sizes to the duration of the last slice, without its fixed cost."""
        if records > 1 and seconds > self._fixed_seconds:
            return super().took(records, seconds - self._fixed_seconds)
        # Such a slice does not show what a row costs. If it was full, the next one may be twice as
        # large.
        self._fixed_seconds = seconds
        if records < self.slice:
            return False
        more = min(2 * records, self._most)
        self._fit, self.batch = max(self._fit, more), max(self.batch, more)
        self._done = max(self._done, more)
        self.slice = min(self._fit, int(self._done))
        return True
