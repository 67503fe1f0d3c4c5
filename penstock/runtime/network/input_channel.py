"""The receiving end of a channel: FIFO, no loss, `block()` and `unblock()`.

A channel belongs to the input gate of one task. Its sender puts elements in (directly if it is
in the same process, else the connection's reader does) and never waits for the task here: flow
control is by credits. A sender may have `capacity` batches under way; a credit goes back when
the task *takes* a batch. Markers need no credit. Kernel buffers are thereby included in the
bound, which keeps the barrier's travel time short.

Nothing here awaits. Whoever must be woken is called back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.compile import ChannelId
from penstock.runtime.network.elements import (
    Barrier,
    Batch,
    Element,
    EncodedBatch,
    EndOfInput,
    count_of,
)

if TYPE_CHECKING:
    from penstock.runtime.network.input_gate import InputGate

__all__ = ["FIRST_RECORDS", "InputChannel", "ChannelStatistics"]

#: The largest number of records in a batch until the receiver has processed some.
FIRST_RECORDS = 16


@dataclass(frozen=True)
class ChannelStatistics:
    """A look at one channel.

    Arguments:
        batches, records: taken so far.
        bytes: received over a socket.
        queued: elements waiting now.
        blocked: it is blocked now.
        alignment_seconds: time it was blocked, in all.
        backpressure_seconds: time it was full, so that its sender had no credit, in all.
    """

    batches: int
    records: int
    bytes: int
    queued: int
    blocked: bool
    alignment_seconds: float
    backpressure_seconds: float


class InputChannel:
    """One input channel of a task.

    Arguments:
        id: which channel it is.
        gate: the gate it feeds.
        capacity: batches that may be under way, queued ones included.
        clock: seconds, for the statistics.
    """

    #: Whether it is a back-edge, which the gate asks for each element.
    is_feedback = False

    def __init__(
        self, id: ChannelId, gate: InputGate, capacity: int, clock: Callable[[], float]
    ) -> None:
        self.id = id
        self.capacity = capacity
        self.blocked = False
        self.ended = False
        #: How many records the task wants in a batch, and how many batches under way if these are
        #: fewer than there is room for; see `sizer.py`.
        self.desired_records = FIRST_RECORDS
        self.window = capacity
        #: Called when the task wants smaller batches than before.
        self.on_slower: Callable[[], None] | None = None
        #: Called when a batch was taken: gives its credit back to the sender.
        self.on_credit: Callable[[], None] | None = None
        self._gate = gate
        self._clock = clock
        self._queue: deque[Element] = deque()
        self._batches_queued = 0
        self._batches = self._records = self._bytes = 0
        self._alignment = self._backpressure = 0.0
        self._since = 0.0
        self._full_since: float | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> int:
        """How many more batches a sender in this process may put."""
        return self.capacity - self._batches_queued

    def put(self, element: Element) -> None:
        """Add an element at the end. Raises `ProtocolError` past the credit or the end."""
        if isinstance(element, Batch | EncodedBatch):
            if self.ended:
                raise ProtocolError(f"batch after the end of input on {self.id}")
            if self._batches_queued >= self.capacity:
                raise ProtocolError(f"batch without a credit on {self.id}")
            self._batches_queued += 1
            if self._batches_queued == self.capacity:
                self._full_since = self._clock()
            if isinstance(element, EncodedBatch):
                self._bytes += len(element.payload)
        elif isinstance(element, EndOfInput):
            if self.ended:
                raise ProtocolError(f"second end of input on {self.id}")
            self.ended = True
        else:
            self._gate.barriers += 1
        self._queue.append(element)
        if len(self._queue) == 1 and not self.blocked:
            self._gate.on_ready(self)

    def take(self) -> Element:
        """Remove the first element; for the gate. Raises `ProtocolError` if blocked or empty."""
        if self.blocked or not self._queue:
            raise ProtocolError(f"nothing to take from {self.id} (blocked: {self.blocked})")
        element = self._queue.popleft()
        if isinstance(element, Batch | EncodedBatch):
            if self._full_since is not None:
                self._backpressure += self._clock() - self._full_since
                self._full_since = None
            self._batches_queued -= 1
            self._batches += 1
            self._records += count_of(element)
            if self.on_credit is not None:
                self.on_credit()
        elif isinstance(element, Barrier):
            self._gate.barriers -= 1
        return element

    def block(self) -> None:
        """Deliver nothing until `unblock`; what arrives is kept, up to the credits."""
        if not self.blocked:
            self.blocked = True
            self._since = self._clock()
            self._gate.on_blocked(self)

    @property
    def blocked_seconds(self) -> float:
        """How long it has been blocked now; 0 if it is not."""
        return self._clock() - self._since if self.blocked else 0.0

    def unblock(self) -> None:
        """Deliver again, from where it stopped."""
        if self.blocked:
            self._alignment += self.blocked_seconds
            self.blocked = False
            if len(self):
                self._gate.on_ready(self)

    def statistics(self) -> ChannelStatistics:
        """A look at the channel."""
        alignment = self._alignment + self.blocked_seconds
        return ChannelStatistics(
            self._batches,
            self._records,
            self._bytes,
            len(self._queue),
            self.blocked,
            alignment,
            self._backpressure,
        )
