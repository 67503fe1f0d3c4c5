"""The queue between a coroutine of an `AsyncioBridge` and a thread that reads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, NoReturn, TypeVar

from penstock.asyncio_thread import AsyncioThread, LoopEndedError

T = TypeVar("T")


class BridgeClosedError(ConnectionError):
    """Raised when a bridge or a queue was closed, or when the event loop of a bridge has died.

    It is a `ConnectionError`, so the engine restarts the job as after the loss of a connection.

    Examples:
        >>> bridge = AsyncioBridge("example")
        >>> bridge.close()
        True
        >>> try:
        ...     bridge.queue(1)
        ... except BridgeClosedError as error:
        ...     print(error)
        the asyncio bridge 'example' is closed
    """


class RaisedError:
    """The error of a coroutine, which may be raised several times."""

    def __init__(self, error: BaseException) -> None:
        self._error, self._traceback = error, error.__traceback__

    def get(self) -> NoReturn:
        """Raise the error."""
        # Each `raise` adds frames to the traceback.
        raise self._error.with_traceback(self._traceback)


class BridgeQueue(Generic[T]):
    """A bounded queue, which coroutines of a bridge fill and another thread empties.

    `AsyncioBridge.produce`, `iterate` and `queue` return it. `put` and `put_all` are coroutines,
    which wait while the queue is full. So a source that is read slowly holds back its producer.

    Examples:
        >>> async def numbers(queue):
        ...     for number in range(5):
        ...         await queue.put(number)
        >>> with AsyncioBridge("example") as bridge:
        ...     queue = bridge.produce(numbers, capacity=2)
        ...     records = []
        ...     while (taken := queue.take(100)) is not None:
        ...         records += taken
        >>> records
        [0, 1, 2, 3, 4]
    """

    def __init__(self, thread: AsyncioThread, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a queue is at least 1, not {capacity}")
        self.capacity = capacity
        self._thread = thread
        self._records: deque[T] = deque()
        self._changed = threading.Condition()
        #: Set when there may be room. It belongs to the thread of the loop.
        self._room = asyncio.Event()
        #: Whether a producer waits for room.
        self._is_awaited = False
        self._ended = False
        self._failure: RaisedError | None = None
        self._closed: BridgeClosedError | None = None
        self._cancel_producer: Callable[[], None] = _nothing

    # ---- in the thread that reads

    def take(self, max_records: int, timeout: float | None = None) -> list[T] | None:
        """Return the records that are there, at most `max_records`; wait if there are none.

        A thread that is blocked in this method wakes up when another thread closes the queue or
        the bridge.

        Arguments:
            max_records: the maximum number of records.
            timeout: the longest time to wait for the first record, in seconds; 0 to return at
                once, None for no limit.

        Returns:
            A list, which is empty after a time-out; None when the queue has ended and all its
            records are taken.

        Raises:
            BridgeClosedError: if the queue or the bridge was closed, or if the loop has died.
            Exception: the error of the producer, when all records before it are taken.
        """
        check_thread(self._thread)
        with self._changed:
            self._changed.wait_for(self._has_news, timeout)
            if self._closed is not None:
                raise again(self._closed)
            if not self._records:
                if self._failure is not None:
                    self._failure.get()
                return None if self._ended else []
            records = self._records
            if len(records) <= max_records:
                taken = list(records)
                records.clear()
            else:
                taken = [records.popleft() for _ in range(max_records)]
            # Half of the queue is free, so that producer and reader do not wait for each record.
            if self._is_awaited and len(records) <= self.capacity // 2:
                self._is_awaited = False
                self._signal_room()
        return taken

    def qsize(self) -> int:
        """Return the number of records that can be taken."""
        return len(self._records)

    def close(self) -> None:
        """Drop the records, and cancel the producer. Other threads may be blocked in `take`."""
        if self._thread.forked:
            return
        self.close_with(
            BridgeClosedError(f"a queue of the asyncio bridge {self._thread.name!r} is closed")
        )

    # ---- in coroutines and callbacks of the loop

    async def put(self, record: T) -> None:
        """Append a record, when there is room.

        Raises:
            BridgeClosedError: if the queue was closed.
        """
        while not self.put_nowait(record):
            await self._wait_for_room()

    async def put_all(self, records: Iterable[T]) -> None:
        """Append many records, when there is room for each. It is faster than `put`.

        Raises:
            BridgeClosedError: if the queue was closed.
        """
        left = deque(records)
        while True:
            with self._changed:
                self._check_open()
                room = self.capacity - len(self._records)
                for _ in range(min(room, len(left))):
                    self._records.append(left.popleft())
                self._changed.notify_all()
                if not left:
                    return
                self._is_awaited = True
            await self._wait_for_room()

    def put_nowait(self, record: T) -> bool:
        """Append a record if there is room, and return whether there was. Callbacks use it.

        Raises:
            BridgeClosedError: if the queue was closed.
        """
        with self._changed:
            self._check_open()
            if len(self._records) >= self.capacity:
                self._is_awaited = True
                return False
            self._records.append(record)
            self._changed.notify()
        return True

    def end(self) -> None:
        """Note that no records follow. `take` returns None behind the last record."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Note that no records follow because of an error. `take` raises it behind the last one."""
        with self._changed:
            if not self._ended:
                self._ended, self._failure = True, RaisedError(error)
            self._changed.notify_all()

    async def _wait_for_room(self) -> None:
        # No `await` is between the look at the queue and this line. The reader sets the event by a
        # callback of the loop, which therefore comes later.
        self._room.clear()
        await self._room.wait()

    # ---- in any thread

    def _has_news(self) -> bool:
        return bool(self._records) or self._ended or self._closed is not None

    def _check_open(self) -> None:
        if self._closed is not None:
            raise again(self._closed)

    def _signal_room(self) -> None:
        try:
            self._thread.call_soon(self._room.set)
        except LoopEndedError:
            pass  # and so has the producer

    # ---- for the bridge

    def set_cancel(self, cancel: Callable[[], None]) -> None:
        """Set the function that cancels the producer."""
        self._cancel_producer = cancel

    async def run(self, produce: Callable[[BridgeQueue[T]], Awaitable[object]]) -> None:
        """Run a producer. Its end is the end of the queue, and its error that of the queue."""
        try:
            await produce(self)
        except asyncio.CancelledError as error:
            # A library may cancel itself. To the reader it is an error like others.
            text = f"a producer was cancelled in the asyncio bridge {self._thread.name!r}"
            cancelled = concurrent.futures.CancelledError(text)
            self.fail(cancelled.with_traceback(error.__traceback__))
            raise
        except Exception as error:
            self.fail(error)
        else:
            self.end()

    def close_with(self, error: BridgeClosedError) -> None:
        """Close the queue with the error that its users get."""
        with self._changed:
            if self._closed is None:
                self._closed = error
            self._records.clear()
            self._changed.notify_all()
        self._signal_room()
        self._cancel_producer()


def again(error: BridgeClosedError) -> BridgeClosedError:
    """Return a copy of an error, for one thread of several that raise it."""
    copy = BridgeClosedError(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def check_thread(thread: AsyncioThread) -> None:
    """Refuse a thread that would wait for itself, and a process without the loop."""
    if thread.forked:
        raise BridgeClosedError(
            f"the asyncio bridge {thread.name!r} belongs to the process that this one is a fork "
            f"of: create a bridge in this process"
        )
    if thread.current:
        raise RuntimeError(
            f"code in the event loop of the asyncio bridge {thread.name!r} waits for this loop: "
            f"use `await` there"
        )


def _nothing() -> None:
    pass
