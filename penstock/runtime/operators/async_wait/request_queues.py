"""Decide in which order the results of requests leave their operator.

Elements without a record, such as watermarks, are *held* in a queue. They leave it when all
requests before them have left it, and before all requests behind them.
(Flink: `OrderedStreamElementQueue`, `UnorderedStreamElementQueue`.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from penstock.runtime.operators.async_wait.request import Request
from penstock.runtime.operators.requests import Held


class RequestQueue(ABC):
    """The requests and held elements of one operator, in the order of their arrival."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Append a request."""

    @abstractmethod
    def hold(self, held: Held) -> None:
        """Append an element that waits for the requests before it."""

    @abstractmethod
    def ended(self, request: Request) -> None:
        """Handle that a request has ended. It leaves the queue with the next `take`."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Return whether something can leave the queue."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Return whether nothing is in the queue."""

    @abstractmethod
    def take(self, most: int) -> list[Request] | Held | None:
        """Remove and return the next element that leaves the queue; None if there is none.

        Arguments:
            most: the maximum number of requests to return.
        """


class OrderedQueue(RequestQueue):
    """Requests leave the queue in the order in which they have arrived."""

    def __init__(self) -> None:
        self._items: deque[Request | Held] = deque()

    def add(self, request: Request) -> None:
        """Append a request."""
        self._items.append(request)

    def hold(self, held: Held) -> None:
        """Append an element that waits for the requests before it."""
        self._items.append(held)

    def ended(self, request: Request) -> None:
        """Do nothing: `take` looks at the first requests."""

    @property
    def ready(self) -> bool:
        """Return whether something can leave the queue."""
        return bool(self._items) and _has_ended(self._items[0])

    @property
    def empty(self) -> bool:
        """Return whether nothing is in the queue."""
        return not self._items

    def take(self, most: int) -> list[Request] | Held | None:
        """Remove and return the first requests, if they have ended, or the first held element."""
        items, taken = self._items, list[Request]()
        while items and len(taken) < most and _has_ended(first := items[0]):
            if isinstance(first, Held):
                if not taken:
                    items.popleft()
                    return first
                break
            taken.append(first)
            items.popleft()
        return taken or None


def _has_ended(item: Request | Held) -> bool:
    return isinstance(item, Held) or item.results is not None


class UnorderedQueue(RequestQueue):
    """Requests leave the queue as they end, but never overtake held elements.

    The held elements divide the requests into segments. Only the first segment is emitted.
    """

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque([_Segment()])
        #: The number of the first segment.
        self._first = 0

    def add(self, request: Request) -> None:
        """Append a request."""
        request.place_in(self._first + len(self._segments) - 1)
        self._segments[-1].add()

    def hold(self, held: Held) -> None:
        """Append an element that waits for the requests before it."""
        self._segments[-1].close(held)
        self._segments.append(_Segment())

    def ended(self, request: Request) -> None:
        """Handle that a request has ended."""
        self._segments[request.segment - self._first].ended(request)

    @property
    def ready(self) -> bool:
        """Return whether something can leave the queue."""
        return self._segments[0].ready

    @property
    def empty(self) -> bool:
        """Return whether nothing is in the queue."""
        return len(self._segments) == 1 and self._segments[0].empty

    def take(self, most: int) -> list[Request] | Held | None:
        """Remove and return the next element that leaves the queue; None if there is none."""
        first = self._segments[0]
        if requests := first.take(most):
            return requests
        if first.ready:
            self._segments.popleft()
            self._first += 1
        return first.held if first.ready else None


class _Segment:
    """The requests between two held elements."""

    def __init__(self) -> None:
        self._running = 0
        self._ended: deque[Request] = deque()
        #: The element behind the segment; None for the last segment.
        self.held: Held | None = None

    def add(self) -> None:
        self._running += 1

    def close(self, held: Held) -> None:
        self.held = held

    def ended(self, request: Request) -> None:
        self._running -= 1
        self._ended.append(request)

    @property
    def ready(self) -> bool:
        return bool(self._ended) or (self.held is not None and not self._running)

    @property
    def empty(self) -> bool:
        return not self._ended and not self._running

    def take(self, most: int) -> list[Request]:
        return [self._ended.popleft() for _ in range(min(most, len(self._ended)))]
