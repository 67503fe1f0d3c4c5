"""How much a task takes at once: its slices of user code, and what its senders may have under way.

Decided by how long slices took, and by how long their output had to wait for room. Records only;
`task.py` takes the time.
"""

from __future__ import annotations

__all__ = ["SLICE_SECONDS", "TARGET_SECONDS", "BatchSizer"]

#: How long user code runs before the engine looks up. So short that what one slice makes is
#: still in the processor's cache when the next operator of the chain takes it. A batch is as long:
#: in smaller ones a record costs more, and a barrier waits for all that a channel may hold.
SLICE_SECONDS = 0.001
#: A slice that took less than so many times what it should may only have been interrupted: other
#: processes want the processor, too.
INTERRUPTED = 8
#: A larger slice would not make a record cheaper. A source would only have more in its hands when
#: a function behind it becomes slow.
MOST = 1 << 13
#: What may be in flight between two tasks takes so long to process, unless the job says otherwise.
TARGET_SECONDS = 0.1
#: The target has so many parts. One is in the hands of the sender, one in those of the receiver;
#: the others are for what is under way, and for an estimate that was too high.
PARTS = 8
#: What is done in a part of the target, in records: until it is known, at most so many times what
#: it was, and at least, or it would take long to grow again.
FIRST, GROWTH, LEAST = 64.0, 8, 1 / 16
#: Records of uneven cost: the average over so many seconds bounds what a run of cheap ones allows.
AVERAGE_SECONDS = 1.0


class BatchSizer:
    """The sizes of slices and batches.

    `slice` is how many records to process before the engine looks up, `batch` how many fit into
    the same time, for senders that never wait. The other senders follow `wanted`.

    Arguments:
        target: what is in flight to the task may take so many seconds, roughly.
    """

    def __init__(self, target: float = TARGET_SECONDS) -> None:
        # Until it is known how long a record takes.
        self.slice = 1
        self.batch = 1
        self._fit = 1
        self._part = target / PARTS
        #: How many records the task gets done in a part of the target.
        self._done = FIRST
        #: Slices that are not yet counted: their records, and how long they took.
        self._new, self._new_seconds = 0, 0.0
        #: Those that were counted last; their seconds include the time their output waited.
        self._last, self._last_seconds = 1, 0.0
        #: Sums over the slices, in which old ones count less and less.
        self._records = self._seconds = 0.0

    def took(self, records: int, seconds: float) -> bool:
        """Go by what a slice took. True if the senders should follow: not after each short slice.

        Arguments:
            records: how many it had.
            seconds: how long it took.
        """
        if seconds < 1e-7:
            seconds = 1e-7
        fit = int(SLICE_SECONDS * records / seconds) or 1
        # Down at once, but by half only if it may have been an interruption: if it goes on like
        # that, three halves are there as well. Up by doubling, on evidence of a full slice.
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
        """Go by how long the output of the last slices waited for room."""
        self._new_seconds += seconds
        self._count(self._done)

    def _count(self, done: float) -> None:
        """Count what is new; find how much is done in a part of the target, `done` at most."""
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
        """Return how many records to put into a batch, and how many batches may be under way.

        Arguments:
            channels: how many share what may be in flight.
        """
        share = self._done / channels
        batch = self.batch
        if batch > share:
            batch = int(share) or 1
        return batch, int(share * (PARTS // 2) / batch) or 1
