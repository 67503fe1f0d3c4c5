"""Keep the newest events of a job, so that a client can continue where it has stopped to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

#: The number of events that are kept.
KEPT_EVENTS = 5_000
#: The kind of event of which only the newest is kept, since it has all figures of the job.
_STATUS = "status"


class EventLog:
    """Keeps the newest events of a job, and numbers all of them from 1.

    Arguments:
        size: the number of events that are kept.
    """

    def __init__(self, size: int = KEPT_EVENTS) -> None:
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=size)
        self._status: tuple[int, dict[str, Any]] | None = None
        #: The number of the newest event that was removed to bound the log; 0 if there is none.
        self._removed = 0
        #: The number of the newest event; 0 before the first one.
        self.last = 0
        #: Whether no event will follow.
        self.closed = False
        #: Functions that are called after each event and at the end.
        self.listeners: set[Callable[[], None]] = set()

    def append(self, event: dict[str, Any]) -> None:
        """Add an event, and notify the listeners."""
        self.last += 1
        if event["event"] == _STATUS:
            self._status = self.last, event
        else:
            if len(self._events) == self._events.maxlen:
                self._removed = self._events[0][0]
            self._events.append((self.last, event))
        self._notify()

    def close(self) -> None:
        """Notify the listeners that no event will follow."""
        self.closed = True
        self._notify()

    def after(self, number: int) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
        """Return how many events are missing, and the events after one with their numbers.

        A status that a newer one replaces is not missing.

        Arguments:
            number: the number of the last event that the client has.
        """
        missing = max(0, self._removed - number)
        # Clients are mostly near the end, so the search begins there.
        found = []
        for one in reversed(self._events):
            if one[0] <= number:
                break
            found.append(one)
        if self._status is not None and self._status[0] > number:
            found.append(self._status)
        return missing, sorted(found, key=lambda one: one[0])

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()
