"""Decide how many records a task processes at once, and how many may be in flight to it.

The sizes follow from the durations of past slices, and from the time for which their output waited
for room. This module only calculates; the task measures the time. (Flink: buffer debloating.)
"""

from __future__ import annotations

__all__ = ["SLICE_SECONDS", "TARGET_SECONDS", "BatchSizer"]

#: The time for which user code runs until the engine gets control, in seconds. It is so short that
#: the output of a slice is still in the processor's cache when the next operator takes it. Batches
#: have the same duration. In smaller batches a record costs more, and in larger ones a barrier
#: waits longer.
SLICE_SECONDS = 0.001
#: A slice that took less than this multiple of `SLICE_SECONDS` may only have been interrupted by
#: another process.
INTERRUPTED = 8
#: The largest slice, in records. A larger one would not make a record cheaper, and a source would
#: hold more records when a function behind it becomes slow.
MOST = 1 << 13
#: The default time for processing the records that are in flight between two tasks, in seconds.
TARGET_SECONDS = 0.1
#: The number of parts of the target. One part is held by the sender and one by the receiver. The
#: others are for records on their way, and for an estimate that was too high.
PARTS = 8
#: For the number of records that are processed in a part of the target: the first estimate, the
#: largest growth at once, and the lower bound, from which it can grow again soon.
FIRST, GROWTH, LEAST = 64.0, 8, 1 / 16
#: The period of the long-term average, in seconds. It bounds the sizes that a run of cheap records
#: would allow.
AVERAGE_SECONDS = 1.0


class BatchSizer:
    """The sizes of slices and batches.

    `slice` is the number of records to process until the engine gets control. `batch` is the number
    of records that fit into the same time, for senders that never wait. The other senders follow
    `wanted`.

    Arguments:
        target: the aimed time for processing all records in flight to the task, in seconds.
    """

    def __init__(self, target: float = TARGET_SECONDS) -> None:
        # The smallest sizes, until the duration of a record is known.
        self.slice = 1
        self.batch = 1
        self._fit = 1
        self._part = target / PARTS
        #: The number of records that the task processes in a part of the target.
        self._done = FIRST
        #: Records and seconds of the slices that are not counted yet.
        self._new, self._new_seconds = 0, 0.0
        #: The same of the slices that were counted last, with the time that their output waited.
        self._last, self._last_seconds = 1, 0.0
        #: Sums over all slices, in which older ones have less weight.
        self._records = self._seconds = 0.0

    def took(self, records: int, seconds: float) -> bool:
        """Take the duration of a slice into account; return whether senders should follow now.

        Arguments:
            records: number of records of the slice.
            seconds: its duration.
        """
        if seconds < 1e-7:
            seconds = 1e-7
        fit = int(SLICE_SECONDS * records / seconds) or 1
        # Sizes shrink at once, but only by half if the slice may have been interrupted. They grow
        # by doubling, and only after a full slice.
        if fit < self._fit or fit < self.batch:
            half = 2 if seconds < INTERRUPTED * SLICE_SECONDS else 1 << 30
            self.batch = max(fit, self.batch // half)
            if fit < self._fit:
                self._fit = max(fit, self._fit // half)
                self.slice = min(self.slice, self._fit)
        else:
            self.batch = fit
        if fit > self._fit and records >= self.slice:
            self._fit = min(fit, self._fit * 2, MOST)
            self.slice = min(self._fit, int(self._done) or 1)
        self._new += records
        self._new_seconds += seconds
        if self._new < self._done and self._new_seconds < SLICE_SECONDS:
            return False
        self._count(self._done * GROWTH)
        return True

    def waited(self, seconds: float) -> None:
        """Take into account that the output of the last slices waited for room."""
        self._new_seconds += seconds
        self._count(self._done)

    def _count(self, done: float) -> None:
        """Count the new slices, and estimate `_done`, with `done` as its upper bound."""
        records, seconds = self._new, self._new_seconds
        self._new, self._new_seconds = 0, 0.0
        if records:
            self._last, self._last_seconds = records, 0.0
        last = self._last_seconds = self._last_seconds + seconds
        keep = AVERAGE_SECONDS / (AVERAGE_SECONDS + seconds)
        self._records = (self._records + records) * keep
        self._seconds = (self._seconds + seconds) * keep
        if done > (now := self._last * self._part / last):
            done = now
        if done > (average := self._records * self._part / self._seconds):
            done = average
        self._done = done if done > LEAST else LEAST
        self.slice = self._fit if self._fit < done else int(done) or 1

    def wanted(self, channels: int) -> tuple[int, int]:
        """Return the number of records of a batch, and the number of batches in flight.

        Arguments:
            channels: number of channels that share the records in flight.
        """
        share = self._done / channels
        batch = self.batch
        if batch > share:
            batch = int(share) or 1
        return batch, int(share * (PARTS // 2) / batch) or 1
