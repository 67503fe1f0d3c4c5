"""Wake one waiting trio task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio


class Signal:
    """Wakes one waiting trio task. If no task waits, the signal stays set."""

    def __init__(self) -> None:
        self._set = False
        self._waiter: trio.lowlevel.Task | None = None

    @property
    def pending(self) -> bool:
        """Return whether the signal was set after the last wait ended."""
        return self._set

    def set(self) -> None:
        """Wake the waiting task, or let the next wait return at once."""
        self._set = True
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(waiter)

    async def wait(self, until: float | None = None) -> None:
        """Wait until the signal is set, or until a time on trio's clock.

        Return at once if the signal was set after the last wait ended.
        """
        if until is None:
            await self._wait()
        else:
            with trio.move_on_at(until):
                await self._wait()

    async def wait_for(self, condition: Callable[[], bool], until: float | None = None) -> None:
        """Wait until a condition holds, or until a time on trio's clock.

        Arguments:
            condition: checked first, and again each time the signal was set.
            until: the latest time to return, in seconds on trio's clock. None means no limit.
        """
        while not condition():
            await self.wait(until)
            if until is not None and trio.current_time() >= until:
                return

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._set:

            def abort(_: Any) -> trio.lowlevel.Abort:
                self._waiter = None
                return trio.lowlevel.Abort.SUCCEEDED

            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)
        self._set = False
