"""How much a task takes at once: its slices of user code, and the batches it wants to be sent.

Decided by how long the last slice took. Records only; `task.py` takes the time.
"""

from __future__ import annotations

__all__ = ["SLICE_SECONDS", "Pace"]

#: How long user code runs before the engine looks up. So short that what one slice makes is
#: still in the processor's cache when the next operator of the chain takes it. A batch is as long:
#: in smaller ones a record costs more, and a barrier waits for all that a channel may hold.
SLICE_SECONDS = 0.001
#: A slice that took less than so many times what it should may only have been interrupted: other
#: processes want the processor, too.
INTERRUPTED = 8
MOST = 1 << 16


class Pace:
    """The sizes of slices and batches.

    `slice` is how many records to process before the engine looks up, `batch` how many its
    senders should put into a batch.
    """

    def __init__(self) -> None:
        # Until it is known how long a record takes.
        self.slice = 1
        self.batch = 1

    def took(self, records: int, seconds: float) -> None:
        """Go by what a slice took.

        Arguments:
            records: how many it had.
            seconds: how long it took.
        """
        per_record = max(seconds, 1e-7) / records
        fit = int(SLICE_SECONDS / per_record)
        # Down at once, but by half only if it may have been an interruption: if it goes on like
        # that, three halves are there as well. Up by doubling, on evidence of a full slice.
        half = 2 if seconds < INTERRUPTED * SLICE_SECONDS else 1 << 30
        if fit < self.slice:
            self.slice = max(1, fit, self.slice // half)
        elif records >= self.slice:
            self.slice = min(fit, self.slice * 2, MOST)
        self.batch = max(1, fit, self.batch // half)
