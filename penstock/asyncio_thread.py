"""Run an asyncio event loop in a thread.

The engine's own event loop is trio's, and its sources and sinks block in threads. Libraries for
asyncio run beside it, in a thread of their own. Asynchronous functions of users
(`penstock.runtime.user_code.asyncio_caller`) and asyncio clients of connectors
(`penstock.connectors.asyncio_bridge`) use the same mechanism.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeVarTuple, Unpack
from weakref import WeakSet

Ts = TypeVarTuple("Ts")

#: The threads of this process. After a fork, the child has their objects, but not the threads.
_threads: WeakSet[AsyncioThread] = WeakSet()
#: The threads that a forked child keeps until its end. The garbage collector would warn of an open
#: loop.
_of_parent: list[AsyncioThread] = []


class LoopEndedError(RuntimeError):
    """Raised when the event loop of an `AsyncioThread` no longer runs."""


class AsyncioThread:
    """A thread with an asyncio event loop, until `end` is called.

    At the end, the thread cancels all tasks of the loop and waits for them. It closes asynchronous
    generators, the loop's own threads and the loop.

    Arguments:
        name: the name of the thread.
        on_end: called in the thread when the loop ends, before the tasks are cancelled. Its
            argument is the error that has ended the loop; None after `end`.
    """

    def __init__(
        self, name: str, on_end: Callable[[BaseException | None], None] | None = None
    ) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        #: The error that has ended the loop.
        self.error: BaseException | None = None
        self._on_end = on_end
        self._process = os.getpid()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    @property
    def running(self) -> bool:
        """Whether the thread runs in this process."""
        return not self.forked and self._thread.is_alive()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the process that has the thread."""
        return os.getpid() != self._process

    @property
    def current(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> None:
        """Call a function in the thread, in a copy of the caller's context. Do not wait for it.

        The call may be lost if the loop ends at the same time.

        Raises:
            LoopEndedError: if the loop has ended, or if it runs in another process.
        """
        if self.forked:
            raise LoopEndedError(
                "the asyncio loop was left in the process that this one is a fork of"
            )
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError as error:
            if not self.loop.is_closed():
                raise
            raise LoopEndedError("the asyncio loop has ended") from (self.error or error)

    def end(self, seconds: float) -> bool:
        """Cancel all tasks, and end the loop and the thread.

        Arguments:
            seconds: the longest time to wait for the thread.

        Returns:
            Whether the thread has ended. It has not if a task blocks it or refuses to be cancelled.
        """
        if self.forked:
            return True
        try:
            self.call_soon(self._ending.set)
        except LoopEndedError:
            pass
        if self.current:
            return False
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._until_end())
            except BaseException as error:  # such as SystemExit, which a task may raise
                self.error = error
            if self._on_end is not None:
                self._on_end(self.error)

    async def _until_end(self) -> None:
        await self._ending.wait()


def _forget_threads() -> None:
    _of_parent.extend(_threads)
    _threads.clear()


os.register_at_fork(after_in_child=_forget_threads)
