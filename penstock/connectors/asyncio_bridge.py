"""Use a client library for asyncio from the threads of the engine.

The engine calls the blocking methods of sources and sinks in threads. Many clients are for asyncio
only. An `AsyncioBridge` runs such a client in an event loop in a thread of its own. Other threads
call its coroutines, and take records from a `BridgeQueue` that a coroutine fills.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import warnings
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from penstock.asyncio_thread import AsyncioThread, LoopEndedError
from penstock.connectors.bridge_queue import (
    BridgeClosedError,
    BridgeQueue,
    RaisedError,
    again,
    check_thread,
)

T = TypeVar("T")

logger = logging.getLogger("penstock.connectors")


class BridgeTask(Generic[T]):
    """A coroutine that runs in the event loop of an `AsyncioBridge`.

    `AsyncioBridge.start` returns it. Its methods are for all threads but that of the loop.

    Examples:
        >>> async def double(number):
        ...     return 2 * number
        >>> with AsyncioBridge("example") as bridge:
        ...     tasks = [bridge.start(double(number)) for number in range(3)]
        ...     [task.result() for task in tasks]
        [0, 2, 4]
    """

    def __init__(self, bridge: AsyncioBridge) -> None:
        self._bridge = bridge
        self._outcome: concurrent.futures.Future[_Outcome[T]] = concurrent.futures.Future()
        self._running: asyncio.Task[T] | None = None

    def done(self) -> bool:
        """Return whether the coroutine has ended."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the coroutine, and return its result or raise its error.

        The error has the traceback of the coroutine. The coroutine goes on after a time-out.

        Arguments:
            timeout: the longest time to wait, in seconds; None for no limit.

        Raises:
            TimeoutError: if the coroutine has not ended in time.
            BridgeClosedError: if the bridge was closed, or if its event loop has died.
            concurrent.futures.CancelledError: if the coroutine was cancelled.
        """
        check_thread(self._bridge._thread)
        try:
            outcome = self._outcome.result(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"a coroutine has not ended within {timeout:g} seconds in the asyncio bridge "
                f"{self._bridge.name!r}"
            ) from None
        return outcome.get()

    def cancel(self) -> None:
        """Cancel the coroutine. Do not wait for its end."""
        try:
            self._bridge._thread.call_soon(self._cancel)
        except LoopEndedError:
            pass  # and so has the coroutine

    # ---- in the thread of the loop

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> None:
        if self.done():
            coroutine.close()  # the bridge was closed before
            return
        self._running = asyncio.get_running_loop().create_task(coroutine)
        self._running.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            text = f"a coroutine was cancelled in the asyncio bridge {self._bridge.name!r}"
            self._settle(RaisedError(concurrent.futures.CancelledError(text)))
        # `exception` marks the error as seen. Otherwise asyncio would report it as lost.
        elif (error := task.exception()) is None:
            self._settle(_Returned(task.result()))
        elif isinstance(error, Exception):
            self._settle(RaisedError(error))
        else:
            return  # An error such as SystemExit ends the loop, and the bridge fails all its tasks.
        self._bridge._forget(self)

    # ---- in any thread

    def _settle(self, outcome: _Outcome[T]) -> None:
        try:
            self._outcome.set_result(outcome)
        except concurrent.futures.InvalidStateError:
            pass  # the bridge was closed meanwhile


class _Returned(Generic[T]):
    """The result of a coroutine."""

    def __init__(self, value: T) -> None:
        self._value = value

    def get(self) -> T:
        return self._value


_Outcome = _Returned[T] | RaisedError


class AsyncioBridge:
    """Runs an asyncio client in a thread, for the blocking methods of a source or a sink.

    A poller or a writer makes a bridge when it is opened, and closes it in `close`. Objects that
    belong to the event loop are made and used in coroutines. All methods may be called in any
    thread but that of the loop, and several threads may call them at once. An object that needs a
    running loop to be created is created in a coroutine: `bridge.call(make_client())`.

    A bridge belongs to one process. It is not sent to workers, and a fork of its process cannot use
    it.

    Arguments:
        name: the name of the thread, and of the bridge in messages.

    Examples:
        >>> class Greetings(SplitPoller):
        ...     def seek(self, position):
        ...         self.next = position or 0
        ...         self.bridge = AsyncioBridge("greetings")
        ...         self.queue = self.bridge.iterate(self.receive(self.next), capacity=100)
        ...     async def receive(self, first):
        ...         for number in range(first, 3):
        ...             yield f"hello {number}"  # or a message of a client
        ...     def poll(self, max_records):
        ...         records = self.queue.take(max_records, timeout=0.1)
        ...         self.next += len(records or ())
        ...         return records
        ...     def position(self):
        ...         return self.next
        ...     def close(self):
        ...         _ = self.bridge.close()
        >>> poller = Greetings()
        >>> poller.seek(1)
        >>> poller.poll(1), poller.poll(1), poller.poll(1)
        (['hello 1'], ['hello 2'], None)
        >>> poller.close()
    """

    def __init__(self, name: str = "penstock-bridge") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._tasks: set[BridgeTask[Any]] = set()
        self._queues: weakref.WeakSet[BridgeQueue[Any]] = weakref.WeakSet()
        #: The reason why the bridge cannot be used any more.
        self._closed: BridgeClosedError | None = None
        # The thread does not keep the bridge alive, so that a lost one is noticed by `__del__`.
        self._thread = AsyncioThread(name, partial(_note_end, weakref.ref(self)))

    # ---- calls

    def call(self, coroutine: Awaitable[T], timeout: float | None = None) -> T:
        """Run a coroutine in the event loop, wait for it, and return its result.

        Arguments:
            coroutine: what a call of an async function returns.
            timeout: the longest time to wait, in seconds; None for no limit. The coroutine is then
                cancelled.

        Raises:
            TimeoutError: if the coroutine has not ended in time.
            BridgeClosedError: if the bridge was closed before or meanwhile, or if its loop has
                died.
            Exception: the error of the coroutine, with its traceback.
        """
        task = self.start(coroutine)
        try:
            return task.result(timeout)
        finally:
            if not task.done():  # after a time-out, or KeyboardInterrupt in this thread
                task.cancel()

    def start(self, coroutine: Awaitable[T]) -> BridgeTask[T]:
        """Begin to run a coroutine in the event loop, and return at once.

        Raises:
            BridgeClosedError: if the bridge is closed, or if its loop has died.
        """
        running = coroutine if isinstance(coroutine, Coroutine) else _awaiting(coroutine)
        task: BridgeTask[T] = BridgeTask(self)
        try:
            check_thread(self._thread)
            with self._lock:
                self._check_open()
                self._tasks.add(task)
            self._thread.call_soon(task._begin, running)
        except BaseException as error:
            running.close()  # Python would also warn that it was never awaited.
            if not isinstance(error, LoopEndedError):
                raise
            self._raise_ended(error)
        return task

    # ---- queues

    def queue(self, capacity: int) -> BridgeQueue[T]:
        """Return an empty queue. Coroutines or callbacks of the loop must fill and end it.

        Arguments:
            capacity: the largest number of records in the queue.
        """
        check_thread(self._thread)
        queue: BridgeQueue[T] = BridgeQueue(self._thread, capacity)
        with self._lock:
            self._check_open()
            self._queues.add(queue)
        return queue

    def produce(
        self, produce: Callable[[BridgeQueue[T]], Awaitable[object]], capacity: int
    ) -> BridgeQueue[T]:
        """Run an async function that fills a queue, and return the queue.

        The queue ends with the function, and fails with its error.

        Arguments:
            produce: an async function of the queue.
            capacity: the largest number of records in the queue.
        """
        queue: BridgeQueue[T] = self.queue(capacity)
        queue.set_cancel(self.start(queue.run(produce)).cancel)
        return queue

    def iterate(self, records: AsyncIterable[T], capacity: int) -> BridgeQueue[T]:
        """Iterate over an asynchronous iterable in the event loop, and return a queue.

        Arguments:
            records: for example an asynchronous generator.
            capacity: the largest number of records in the queue.
        """

        async def produce(queue: BridgeQueue[T]) -> None:
            async for record in records:
                await queue.put(record)

        return self.produce(produce, capacity)

    # ---- the end

    @property
    def closed(self) -> bool:
        """Whether the bridge was closed, or its event loop has died."""
        return self._closed is not None

    def close(
        self, last: Callable[[], Awaitable[object]] | None = None, timeout: float = 5.0
    ) -> bool:
        """End the event loop and its thread. Other threads may be blocked in `call` or `take`.

        These threads get a `BridgeClosedError`. The coroutines of `call`, `start` and `produce` are
        cancelled. Then `last` runs. Then all other tasks are cancelled, for example those of the
        client. A second call does nothing.

        Arguments:
            last: an async function that closes the client. Its error is logged.
            timeout: the longest time for `last`, and then for the tasks, in seconds.

        Returns:
            Whether the thread has ended in time. Otherwise a task of it blocks the loop or refuses
            to be cancelled. The thread does not keep the process alive.
        """
        if self._thread.forked:
            return True
        if self._fail_all(BridgeClosedError(f"the asyncio bridge {self.name!r} is closed")):
            self._run_last(last, timeout)
        ended = self._thread.end(timeout)
        if not ended and not self._thread.current:
            logger.warning(
                "the asyncio bridge %r has not ended within %g seconds: one of its tasks blocks "
                "the event loop, or catches CancelledError and goes on",
                self.name,
                timeout,
            )
        return ended

    def __enter__(self) -> AsyncioBridge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)  # None if `__init__` has failed
        if thread is not None and not self.closed and not thread.forked:
            warnings.warn(f"unclosed asyncio bridge {self.name!r}", ResourceWarning, stacklevel=2)
            thread.end(0)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the asyncio bridge {self.name!r} cannot be sent to another process: create it where "
            f"it is used, for example in create_poller or open"
        )

    def _run_last(self, last: Callable[[], Awaitable[object]] | None, timeout: float) -> None:
        if last is None or self._thread.current:
            return
        task: BridgeTask[object] = BridgeTask(self)
        coroutine = _awaiting_call(last)
        try:
            self._thread.call_soon(task._begin, coroutine)
        except LoopEndedError:
            coroutine.close()
            return
        try:
            task.result(timeout)
        except Exception:
            task.cancel()
            logger.warning(
                "the client of the asyncio bridge %r was not closed", self.name, exc_info=True
            )

    def _fail_all(self, error: BridgeClosedError) -> bool:
        """Wake all threads that wait for the loop; return False if that has happened before."""
        with self._lock:
            if self._closed is not None:
                return False
            self._closed = error
            tasks, queues = list(self._tasks), list(self._queues)
        for queue in queues:
            queue.close_with(error)
        for task in tasks:
            task._settle(RaisedError(again(error)))
            task.cancel()
        return True

    def _forget(self, task: BridgeTask[Any]) -> None:
        with self._lock:
            self._tasks.discard(task)

    # ---- checks

    def _check_open(self) -> None:
        if self._closed is not None:
            raise again(self._closed)

    def _raise_ended(self, error: LoopEndedError) -> NoReturn:
        self._check_open()
        raise BridgeClosedError(*error.args) from error


def _note_end(of: weakref.ref[AsyncioBridge], cause: BaseException | None) -> None:
    """Close a bridge whose loop has ended by itself."""
    bridge = of()
    if bridge is not None and not bridge.closed:
        reason = "" if cause is None else f" with {type(cause).__name__}: {cause}"
        error = BridgeClosedError(
            f"the event loop of the asyncio bridge {bridge.name!r} has ended{reason}"
        )
        error.__cause__ = cause
        bridge._fail_all(error)


async def _awaiting(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _awaiting_call(function: Callable[[], Awaitable[T]]) -> T:
    return await function()
