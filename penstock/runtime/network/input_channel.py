"""The receiving end of a channel: FIFO, without loss, with `block()` and `unblock()`.

A channel belongs to the input gate of one task. A sender in the same process puts elements into
the channel directly. If the sender is in another process, the reader of the connection puts them.
`put` never waits, because credits control the flow. The sender may have `capacity` batches in
flight, and gets a credit back when the task *takes* a batch. Markers need no credit. Batches in
kernel buffers also count as in flight. This limits the time that a barrier needs to arrive.

No function here awaits. The channel notifies the gate and the sender through callbacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.serialization.record_batch import RecordBatch

#: The maximum number of records in a batch until the receiver has processed some batches.
FIRST_RECORDS = 16


class ChannelListener(Protocol):
    """Receives the events of input channels. The input gate implements it."""

    def on_ready(self, channel: InputChannel) -> None:
        """Handle the event that a channel now has an element that the task can take."""

    def on_blocked(self, channel: InputChannel) -> None:
        """Handle the event that a channel was blocked."""

    def on_emptied(self, channel: InputChannel) -> None:
        """Handle the event that a channel has dropped all its elements."""

    def on_barrier_queued(self) -> None:
        """Handle the event that a barrier was put into a channel of the gate."""

    def on_barrier_taken(self) -> None:
        """Handle the event that the task took a barrier from a channel of the gate."""


class InputChannel:
    """One input channel of a task.

    Arguments:
        id: the identity of the channel.
        listener: the object that receives the events of the channel.
        capacity: the maximum number of batches in flight, which includes the queued batches.
        clock: a function that returns the time in seconds; used to measure how long the channel is
            blocked.
    """

    #: Whether the channel is a feedback channel. The gate checks this for each element.
    is_feedback = False

    def __init__(
        self, id: ChannelId, listener: ChannelListener, capacity: int, clock: Callable[[], float]
    ) -> None:
        self.id = id
        self.capacity = capacity
        self.blocked = False
        self.ended = False
        #: The number of records that the task wants in a batch.
        self.desired_records = FIRST_RECORDS
        #: The number of batches that the task wants in flight. `capacity` limits it.
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
        """Return the number of batches that a sender in this process may still put."""
        return self.capacity - self._batches_queued

    # ---- methods for the sender

    def attach_sender(
        self,
        on_credit: Callable[[], None],
        on_smaller_batches: Callable[[], None] | None = None,
    ) -> None:
        """Set the callbacks of the sender.

        Arguments:
            on_credit: a function that is called when a credit returns to the sender, because a
                batch was taken.
            on_smaller_batches: a function that is called when the task wants smaller batches, or
                fewer batches in flight, than before.
        """
        self._on_credit, self._on_smaller_batches = on_credit, on_smaller_batches

    def detach_sender(self) -> None:
        """Remove the callbacks of the sender."""
        self._on_credit = self._on_smaller_batches = None

    def put(self, element: Element) -> None:
        """Append an element to the channel.

        Raises:
            ProtocolError: if a batch has no credit, or a batch or a second end of input follows the
                end of input.
        """
        if self.ended and not isinstance(element, Barrier):
            raise self._after_end(element)
        if isinstance(element, RecordBatch | EncodedBatch):
            if self._batches_queued >= self.capacity:
                raise ProtocolError(f"batch without a credit on {self.id}")
            self._batches_queued += 1
        elif isinstance(element, EndOfInput):
            self.ended = True
        elif isinstance(element, Barrier):
            self._listener.on_barrier_queued()
        elif self._replace_watermark(element):
            return
        self._queue.append(element)
        if len(self._queue) == 1 and not self.blocked:
            self._listener.on_ready(self)

    def learn_steps(self, data: bytes) -> None:
        """Take in steps of the sender, which may restart alone.

        Raises:
            ProtocolError: always, unless a subclass overrides the method.
        """
        raise ProtocolError(f"{self.id} got {len(data)} bytes of steps, which no task here logs")

    def _replace_watermark(self, element: Element) -> bool:
        """Replace the last element if both are watermarks; return whether that was done.

        So watermarks need no credits, and a blocked channel holds few of them.
        """
        queue = self._queue
        if isinstance(element, Watermark) and queue and isinstance(queue[-1], Watermark):
            queue[-1] = element
            return True
        return False

    def _after_end(self, element: Element) -> ProtocolError:
        second = isinstance(element, EndOfInput)
        what = "second end of input" if second else "batch after the end of input"
        return ProtocolError(f"{what} on {self.id}")

    # ---- methods for the task

    def take(self) -> Element:
        """Remove and return the first element.

        Raises:
            ProtocolError: if the channel is blocked or empty.
        """
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
        """Set the number of records that the task wants in a batch.

        The sender uses the new number from the next credit on.
        """
        self.desired_records = records

    def limit_in_flight(self, records: int, batches: int) -> None:
        """Set the number of records in a batch, and the number of batches in flight.

        Both numbers are wishes of the task. If one becomes smaller, the sender is notified at once.
        """
        smaller = records < self.desired_records or batches < self.window
        self.desired_records, self.window = records, batches
        if smaller and self._on_smaller_batches is not None:
            self._on_smaller_batches()

    def block(self) -> None:
        """Block the channel: it queues its elements until `unblock` is called."""
        if not self.blocked:
            self.blocked = True
            self._blocked_since = self._clock()
            self._listener.on_blocked(self)

    @property
    def blocked_seconds(self) -> float:
        """Return the time since the channel was blocked, in seconds, or 0 if it is not."""
        return self._clock() - self._blocked_since if self.blocked else 0.0

    def unblock(self) -> None:
        """Unblock the channel, so that the task can take its queued elements again."""
        if self.blocked:
            self.blocked = False
            if len(self):
                self._listener.on_ready(self)
