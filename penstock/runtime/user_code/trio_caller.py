"""Call asynchronous functions in the worker's own event loop, and plain ones in threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from penstock.runtime.system.threads import Offload
from penstock.runtime.user_code.async_caller import Outcome, outcome_of
from penstock.runtime.user_code.errors import is_user_error


class TrioCaller:
    """Calls functions written for trio. (Implements `AsyncCaller`.)

    Arguments:
        nursery: the nursery of the worker.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call a function with a value in a trio task of its own; see `AsyncCaller`."""
        scope = trio.CancelScope()
        self._nursery.start_soon(self._call, scope, function, value, done)
        return scope.cancel

    async def _call(
        self,
        scope: trio.CancelScope,
        function: Callable[[Any], Any],
        value: Any,
        done: Callable[[Outcome], None],
    ) -> None:
        outcome = None
        with scope:
            try:
                outcome = Outcome(await function(value))
            except BaseException as error:
                if not is_user_error(error):
                    raise
                outcome = Outcome(error=error)
        if outcome is not None:
            done(outcome)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a plain function; see `AsyncCaller`."""
        function(*arguments)


class ThreadCaller(TrioCaller):
    """Calls plain functions in threads. (Implements `AsyncCaller`.)

    A call that is cancelled ends at once for the worker, although its thread is still running.

    Arguments:
        nursery: the nursery of the worker.
        offload: runs a blocking function in a thread.
    """

    def __init__(self, nursery: trio.Nursery, offload: Offload) -> None:
        super().__init__(nursery)
        self._offload = offload

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call a function with a value in a thread; see `AsyncCaller`."""

        async def in_thread(value: Any) -> Any:
            outcome: Outcome = await self._offload(partial(outcome_of, function, value))
            if outcome.error is not None:
                raise outcome.error
            return outcome.value

        return super().call(in_thread, value, done)
