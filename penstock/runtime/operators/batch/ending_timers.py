"""The timers of batch mode, which fire when the input of a key has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.runtime.operators.time.operator_timers import OperatorTimers
from penstock.runtime.operators.time.timer_queue import TimerQueue
from penstock.runtime.user_code.current_operator import operator_at_work

__all__ = ["EndingTimers"]

_LOGGER = logging.getLogger("penstock")


class EndingTimerQueue(TimerQueue):
    """A queue that ignores further timers while its timers fire."""

    _refusing = False
    _refused = False

    def refuse(self, refusing: bool) -> None:
        """Set whether further timers are ignored."""
        self._refusing = refusing

    def register(self, key: Any, namespace: Any, time: int) -> None:
        """Register a timer, unless the timers fire."""
        if not self._refusing:
            super().register(key, namespace, time)
        elif not self._refused:
            self._refused = True
            at_work = operator_at_work.get()
            _LOGGER.warning(
                "operator %r registered a timer while its last timers fired: it does not fire, "
                "because the input has ended (batch mode)",
                None if at_work is None else at_work.name,
            )


class EndingTimers(OperatorTimers):
    """The timers of one operator. The argument is that of `OperatorTimers`."""

    _queue_class = EndingTimerQueue

    @contextmanager
    def refusing_others(self) -> Iterator[None]:
        """Ignore timers that are registered within the `with` block."""
        queues = [self._event, self._processing]
        for queue in queues:
            if isinstance(queue, EndingTimerQueue):
                queue.refuse(True)
        try:
            yield
        finally:
            for queue in queues:
                if isinstance(queue, EndingTimerQueue):
                    queue.refuse(False)
