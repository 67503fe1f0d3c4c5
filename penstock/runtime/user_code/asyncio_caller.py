"""Call asyncio coroutines in an event loop that runs in a thread of the worker.

The worker's own event loop is trio's. A thread lets all asyncio libraries run as they are, and a
coroutine that computes for long does not stop the worker's event loop. All asynchronous operators
of a worker share the thread.

Calls and outcomes cross between the threads in queues. A thread wakes the other one only once for
all that wait in its queue.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import trio

from penstock.asyncio_thread import AsyncioThread, LoopEndedError
from penstock.runtime.user_code.async_caller import Outcome

#: The longest time for the coroutines to end when the worker ends, in seconds.
CLOSE_SECONDS = 5.0


class _Call:
    """A call that is under way.

    Arguments:
        function: the function of the user.
        value: its argument.
        done: takes the outcome.
        context: the context variables of the operator.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        value: Any,
        done: Callable[[Outcome], None],
        context: Context,
    ) -> None:
        self.function, self.value, self.done, self.context = function, value, done, context
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    def start(self, loop: asyncio.AbstractEventLoop, run: Callable[[_Call], Any]) -> None:
        """Start the coroutine, in the thread of the event loop."""
        if not self._cancelled:
            self._task = loop.create_task(run(self), context=self.context)

    def cancel(self) -> None:
        """Cancel the coroutine, in the thread of the event loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


class AsyncioCaller:
    """Calls asyncio coroutines in a thread. (Implements `AsyncCaller`.)"""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._calls: deque[_Call] = deque()
        self._outcomes: deque[tuple[_Call, Outcome]] = deque()
        #: Whether the event loop is going to run `_start_calls`.
        self._told = False
        self._thread = AsyncioThread("penstock-asyncio")

    # ---- in the worker's event loop

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call a coroutine function with a value; see `AsyncCaller`."""
        call = _Call(function, value, done, copy_context())
        self._calls.append(call)
        if not self._told:
            self._told = True
            self._thread.call_soon(self._start_calls)
        return lambda: self._cancel(call)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a plain or coroutine function in the event loop, and wait for it."""

        async def run() -> None:
            result = function(*arguments)
            if inspect.isawaitable(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), self._thread.loop).result()

    def close(self) -> None:
        """Cancel all coroutines, and end the thread."""
        self._thread.end(CLOSE_SECONDS)

    def _cancel(self, call: _Call) -> None:
        try:
            self._thread.call_soon(call.cancel)
        except LoopEndedError:
            pass  # and so has the call

    def _deliver(self) -> None:
        while self._outcomes:
            call, outcome = self._outcomes.popleft()
            call.done(outcome)

    # ---- in the thread

    def _start_calls(self) -> None:
        self._told = False
        while self._calls:
            self._calls.popleft().start(self._thread.loop, self._call)

    async def _call(self, call: _Call) -> None:
        try:
            outcome = Outcome(await call.function(call.value))
        except BaseException as error:
            outcome = Outcome(error=error)
        self._outcomes.append((call, outcome))
        try:
            self._token.run_sync_soon(self._deliver, idempotent=True)
        except trio.RunFinishedError:
            pass  # the worker has ended
