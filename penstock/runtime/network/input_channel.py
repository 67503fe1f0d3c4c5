"""The receiving end of a channel: FIFO, without loss, with `block()` and `unblock()`.

A channel belongs to the input gate of one task. The sender puts elements in: directly if it is in
the same process, otherwise through the reader of the connection. The sender never waits for the
task here, because flow control is by credits. It may have `capacity` batches in flight, and gets a
credit back when the task *takes* a batch. Markers need no credit. Batches in kernel buffers count
as in flight, too; this bounds the time that a barrier needs.

Nothing here awaits; the other parts are notified through callbacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.serialization.record_batch import RecordBatch

__all__ = ["FIRST_RECORDS", "ChannelListener", "InputChannel"]

#: The largest number of records in a batch until the receiver has processed some.
FIRST_RECORDS = 16


class ChannelListener(Protocol):
    """Receives the events of input channels; implemented by the input gate."""

    def on_ready(self, channel: InputChannel) -> None:
        """Handle that a channel without elements to take has one now."""

    def on_blocked(self, channel: InputChannel) -> None:
        """Handle that a channel was blocked."""

    def on_barrier_queued(self) -> None:
        """Handle that a barrier was put into a channel."""

    def on_barrier_taken(self) -> None:
        """Handle that a barrier was taken from a channel."""


class InputChannel:
    """One input channel of a task.

    Arguments:
        id: the identity of the channel.
        listener: is notified of what happens to the channel.
        capacity: the maximum number of batches in flight, queued ones included.
        clock: returns seconds; measures for how long the channel is blocked.
    """

    #: Whether it is a back-edge. The gate checks this for each element.
    is_feedback = False

    def __init__(
        self, id: ChannelId, listener: ChannelListener, capacity: int, clock: Callable[[], float]
    ) -> None:
        self.id = id
        self.capacity = capacity
        self.blocked = False
        self.ended = False
        #: The number of records that the task wants in a batch, and the number of batches that may
        #: be in flight if that is less than the capacity.
        self.desired_records = FIRST_RECORDS
        self.window = capacity
        self._on_credit: Callable[[], None] | None = None
        self._on_smaller_batches: Callable[[], None] | None = None
        self._listener = listener
        self._clock = clock
        self._queue: deque[Element] = deque()
        self._batches_queued = 0
        self._blocked_since = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> int:
        """Return how many more batches a sender in this process may put."""
        return self.capacity - self._batches_queued

    # ---- the sender's side

    def attach_sender(
        self,
        on_credit: Callable[[], None],
        on_smaller_batches: Callable[[], None] | None = None,
    ) -> None:
        """Set the callbacks of the sender.

        Arguments:
            on_credit: is called when a batch was taken, which returns its credit.
            on_smaller_batches: is called when the task wants smaller batches than before.
        """
        self._on_credit, self._on_smaller_batches = on_credit, on_smaller_batches

    def detach_sender(self) -> None:
        """Remove the callbacks of the sender."""
        self._on_credit = self._on_smaller_batches = None

    def put(self, element: Element) -> None:
        """Add an element. Raise `ProtocolError` without a credit or after the end."""
        if self.ended and not isinstance(element, Barrier):
            raise self._after_end(element)
        if isinstance(element, RecordBatch | EncodedBatch):
            if self._batches_queued >= self.capacity:
                raise ProtocolError(f"batch without a credit on {self.id}")
            self._batches_queued += 1
        elif isinstance(element, EndOfInput):
            self.ended = True
        else:
            self._listener.on_barrier_queued()
        self._queue.append(element)
        if len(self._queue) == 1 and not self.blocked:
            self._listener.on_ready(self)

    def _after_end(self, element: Element) -> ProtocolError:
        second = isinstance(element, EndOfInput)
        what = "second end of input" if second else "batch after the end of input"
        return ProtocolError(f"{what} on {self.id}")

    # ---- the task's side

    def take(self) -> Element:
        """Remove and return the first element. Raise `ProtocolError` if blocked or empty."""
        if self.blocked or not self._queue:
            raise ProtocolError(f"nothing to take from {self.id} (blocked: {self.blocked})")
        element = self._queue.popleft()
        if isinstance(element, RecordBatch | EncodedBatch):
            self._batches_queued -= 1
            if self._on_credit is not None:
                self._on_credit()
        elif isinstance(element, Barrier):
            self._listener.on_barrier_taken()
        return element

    def limit_batches(self, records: int) -> None:
        """Set how many records the task wants in a batch, from the next credit on."""
        self.desired_records = records

    def limit_in_flight(self, records: int, batches: int) -> None:
        """Set how many records the task wants in a batch, and how many batches in flight."""
        smaller = records < self.desired_records
        self.desired_records, self.window = records, batches
        if smaller and self._on_smaller_batches is not None:
            self._on_smaller_batches()

    def block(self) -> None:
        """Deliver nothing until `unblock`; elements that arrive are queued."""
        if not self.blocked:
            self.blocked = True
            self._blocked_since = self._clock()
            self._listener.on_blocked(self)

    @property
    def blocked_seconds(self) -> float:
        """Return for how long it has been blocked; 0 if it is not blocked."""
        return self._clock() - self._blocked_since if self.blocked else 0.0

    def unblock(self) -> None:
        """Continue to deliver, from the first queued element."""
        if self.blocked:
            self.blocked = False
            if len(self):
                self._listener.on_ready(self)
