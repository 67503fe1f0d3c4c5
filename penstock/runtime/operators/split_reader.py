"""Read one split at a time with a reader, in threads if the reader may block.

A snapshot holds the position behind the last *emitted* batch, and a thread may have read further.
So what a thread has read waits here until the task takes it, and only then the position advances.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.dataflow.source import Read, SourceReader, Split

__all__ = ["OffloadRead", "SplitReader", "Wait"]

ReadOrError = Read | BaseException
#: Runs a blocking read off the event loop; the call is abandoned when the job ends.
OffloadRead = Callable[[Callable[[], ReadOrError]], Awaitable[ReadOrError]]
#: Waits until a condition holds that a `wake` announces, or until a time if it is not None.
Wait = Callable[[Callable[[], bool], float | None], Awaitable[None]]


class SplitReader:
    """A reader, the split that it reads, and the position in it.

    Arguments:
        reader: the source's reader.
        clock: seconds.
        wake: called when there is something to read, or to take.
    """

    def __init__(
        self, reader: SourceReader, clock: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._wake = wake
        #: The open split; None if there is none, or it is read to its end.
        self.split: Split | None = None
        #: Whether the reader has opened the split. It does so at the first read, since an error of
        #: `SourceReader.open` is reported like one of `read`.
        self._opened = False
        #: Behind the last batch that was taken.
        self.position: Any = None
        #: When the reader has records again, if it said so; else 0.
        self._due = 0.0
        #: The result of a thread's read, until the task takes it.
        self._ahead: ReadOrError | None = None
        self._max_records = 1
        #: Whether `pump` has to run, since the reader may block.
        self.pumping = reader.blocking

    @property
    def wake_at(self) -> float | None:
        """Return when the reader has records again, if it said so; `pump` waits by itself."""
        # The time is not compared with the clock. It could come between a read that found nothing
        # due and this question, and None would mean to sleep until something else happens.
        return self._due if self.split is not None and self._due and not self.pumping else None

    def open(self, split: Split, position: Any) -> None:
        """Begin to read a split, from a position if it was read before."""
        self.split, self.position, self._due = split, position, 0.0
        self._opened = False
        if self.pumping:
            self._wake()  # the pump may have looked before there was a split

    def read(self, max_records: int) -> list[Any] | None:
        """Return the next records of the open split, or None if there are none now.

        Their position counts as emitted: the task emits them before it takes a barrier.
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
        return read.records

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read in threads, one batch ahead of the task, until cancelled."""
        while True:
            await wait(lambda: self.split is not None and self._ahead is None, None)
            if self._due > self._clock():
                await wait(lambda: False, self._due)
            self._ahead = await offload(self._read_in_thread)
            self._wake()

    def _read_in_thread(self) -> ReadOrError:
        # An error is returned: if it were raised, its traceback would begin with frames of the
        # thread.
        try:
            return self._open_and_read(self._max_records)
        except BaseException as error:
            return error

    def _open_and_read(self, max_records: int) -> Read:
        if not self._opened:
            assert self.split is not None
            self._reader.open(self.split, self.position)
            self._opened = True
        return self._reader.read(max_records)

    def close(self) -> None:
        """Close the reader, even while a thread is blocked in it."""
        self._reader.close()
