"""A source at work: splits, positions, and the reader of one task.

What a task has read and emitted is told by positions: the snapshot takes the position after the
last *emitted* batch, whatever a thread has read ahead. A reader that may block is read in a
thread by `pump`; what it returns waits here until the task takes it. Splits are asked for one
ahead, so that the next is here when one ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.dataflow.source import Read, SourceReader, Split

__all__ = ["OffloadRead", "SequentialSourceInput"]

ReadOrError = Read | BaseException
#: Runs a blocking read off the event loop.
OffloadRead = Callable[[Callable[[], ReadOrError]], Awaitable[ReadOrError]]


class SequentialSourceInput:
    """The splits of one source task, and its place in them.

    Arguments:
        reader: the source's reader.
        clock: seconds.
        request: asks the JobManager for a split; called again only after an answer.
        wake: called when the task has something to do.
    """

    def __init__(
        self,
        reader: SourceReader,
        clock: Callable[[], float],
        request: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._request = request
        self._wake = wake
        self._queue: deque[tuple[Split, Any]] = deque()
        self._split: Split | None = None
        self._position: Any = None
        self._requested = False
        self._no_more = False
        self._due = 0.0
        #: What the pump has read, not yet taken; and whether the pump may read on.
        self._ahead: ReadOrError | None = None
        self.pumping = reader.blocking
        self.want = 1

    @property
    def ended(self) -> bool:
        """Whether all splits are read to their ends."""
        return self._no_more and self._split is None and not self._queue

    @property
    def wake_at(self) -> float | None:
        """When the reader has something again, if it said so; a pump waits for that by itself."""
        # Not compared with the clock: between a read that found nothing due and this question
        # the time may come, and None would mean to sleep until something else happens.
        return self._due if self._split is not None and self._due and not self.pumping else None

    def restore(self, state: Any) -> None:
        """Take back what `snapshot` gave."""
        for id, payload, position in state:
            self._queue.append((Split(id, payload), position))

    def snapshot(self) -> Any:
        """The splits that are here, each with the position after the last emitted batch."""
        splits = [[split.id, split.payload, position] for split, position in self._queue]
        if self._split is not None:
            splits.insert(0, [self._split.id, self._split.payload, self._position])
        return splits

    def assign(self, split: Split, position: Any) -> None:
        """The JobManager gave a split."""
        self._requested = False
        self._queue.append((split, position))

    def no_more(self) -> None:
        """The JobManager has no more splits."""
        self._no_more, self._requested = True, True

    def advance(self) -> bool:
        """Begin the next split if there is none; True if there is one to read."""
        if self._split is None and self._queue:
            self._split, self._position = self._queue.popleft()
            self._due = 0.0
            if self.pumping:
                self._wake()  # the pump may have looked before there was a split
            else:
                self._reader.open(self._split, self._position)
        if not self._requested and not self._queue:
            self._requested = True
            self._request()
        return self._split is not None

    def read(self, max_records: int) -> list[Any] | None:
        """The next records to emit, or None if there are none now.

        Their position counts as emitted: the task emits them before it takes a barrier.
        """
        if not self.advance():
            return None
        if self.pumping:
            self.want = max_records
            read, self._ahead = self._ahead, None
            if read is None:
                return None
            self._wake()
            if isinstance(read, BaseException):
                raise read
        else:
            if self._due and self._clock() < self._due:
                return None
            read = self._reader.read(max_records)
        self._position = read.position
        self._due = self._clock() + read.wait_seconds if read.wait_seconds > 0 else 0.0
        if read.finished:
            self._split = None
            self.advance()
        return read.records

    async def pump(
        self,
        offload: OffloadRead,
        wait: Callable[[Callable[[], bool], float | None], Awaitable[None]],
    ) -> None:
        """Read in threads, one batch ahead, for ever.

        Arguments:
            offload: runs a blocking call; abandoned when the job ends.
            wait: waits until a condition holds that `wake` announces, or until a time.
        """
        opened: Split | None = None
        while True:
            await wait(lambda: self._split is not None and self._ahead is None, None)
            if self._due > self._clock():
                await wait(lambda: False, self._due)
            split = self._split
            assert split is not None
            self._ahead = await offload(partial(self._open_and_read, split, split is opened))
            opened = split
            self._wake()

    def _open_and_read(self, split: Split, is_open: bool) -> ReadOrError:
        # Returned and not raised: otherwise its traceback would begin with frames of the thread.
        try:
            if not is_open:
                self._reader.open(split, self._position)
            return self._reader.read(self.want)
        except BaseException as error:
            return error

    def close(self) -> None:
        """Close the reader, even while a thread is blocked in it."""
        self._reader.close()
