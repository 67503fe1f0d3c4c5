"""The sending end of a channel.

A partitioner spreads a batch over the buffers of its outputs, in one loop. An output seals its
buffer into batches when it is large enough, when its oldest record is old enough, or when the task
has nothing else to do; sealed elements wait in the output until there is a credit for them. A task
whose outputs hold sealed elements takes no more input: that is backpressure.

Nothing here awaits; what goes over a socket is handed to a `Sender`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from penstock.dataflow.errors import JobError
from penstock.runtime.network.elements import Barrier, Batch, Element
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.recorded_channel import EdgeIdentity
from penstock.runtime.serialization.record_batch import Pending, Records

__all__ = [
    "BatchTooLargeError",
    "LocalOutputChannel",
    "OutputChannel",
    "RemoteOutputChannel",
    "Sender",
    "seal_due",
]


class BatchTooLargeError(JobError):
    """A batch does not fit into a frame."""


class OutputChannel(ABC):
    """The sending end of one channel.

    Arguments:
        batch_records: a batch is sealed at so many records.
    """

    def __init__(self, batch_records: int) -> None:
        self.pending = Pending()
        #: When the oldest record of the buffer came; None if it is empty or was not looked at.
        self.since: float | None = None
        #: How many records make a batch; lowered for large records and slow consumers.
        self.limit = batch_records
        #: Which channel it is the end of; where barriers may overtake.
        self.edge: EdgeIdentity | None = None
        self.target = 0
        self._sealed: deque[Element] = deque()
        #: The highest barrier that was sent.
        self._barrier = -1

    @property
    def buffer(self) -> list[Any]:
        """The records that are not yet sealed; of tuples by column the first that varies."""
        return self.pending.records

    def seal(self) -> None:
        """Make batches of all that is in the buffer."""
        self._cut()
        if self.pending.records:
            self._give()
        self.since = None

    def seal_full(self) -> None:
        """Make full batches; what does not make one stays in the buffer."""
        self._cut()
        if len(self.pending.records) >= self.limit:
            self._give()
        self.since = None

    def _cut(self) -> None:
        """Make batches of the limit's size, until there are not many more records than that.

        Cutting touches every record, which takes as long as routing it if they have left the
        processor's cache. So a batch may be half as large again.
        """
        pending, limit = self.pending, self.limit
        count, most = len(pending.records), limit + limit // 2
        start = 0
        while count - start > most:
            self._sealed.append(Batch(pending.copy(start, start + limit)))
            start += limit
        if start:
            pending.drop(start)

    def _give(self) -> None:
        """Make a batch of the very list, and begin another."""
        self._sealed.append(Batch(self.pending.give()))

    def mark(self, element: Element) -> None:
        """Put a marker behind everything that was emitted."""
        self.seal()
        self._sealed.append(element)

    def overtake(self, barrier: Barrier) -> list[Records]:
        """Send a barrier ahead of everything that waits, or of what waits before it if it is there.

        Returns the batches that it has overtaken, in order; they wait on. If it has been sent on
        this channel before, it overtakes nothing.
        """
        if barrier.number <= self._barrier:
            return []
        self.seal()
        overtaken: list[Records] = []
        for element in self._sealed:
            if isinstance(element, Barrier) and element.number == barrier.number:
                self._sealed.remove(element)
                break
            if isinstance(element, Batch):
                overtaken.append(element.records)
        self._send_marker(barrier)
        return overtaken

    def push(self) -> bool:
        """Send what is sealed as far as credits go; True if nothing is left."""
        while self._sealed:
            element = self._sealed[0]
            if isinstance(element, Batch):
                if not self.has_credit():
                    return False
                self.send(element)
            else:
                self._send_marker(element)
            self._sealed.popleft()
        return True

    def _send_marker(self, element: Element) -> None:
        if isinstance(element, Barrier):
            self._barrier = max(self._barrier, element.number)
        self.mark_sent(element)

    @property
    def waiting(self) -> int:
        """Sealed elements that wait for a credit."""
        return len(self._sealed)

    @abstractmethod
    def has_credit(self) -> bool:
        """Whether a batch may be sent now."""

    @abstractmethod
    def send(self, batch: Batch) -> None:
        """Send a batch, for which there is a credit."""

    @abstractmethod
    def mark_sent(self, element: Element) -> None:
        """Send a marker."""


class LocalOutputChannel(OutputChannel):
    """To a task in the same process.

    Arguments:
        channel: the receiving end.
    """

    def __init__(self, channel: InputChannel, batch_records: int) -> None:
        super().__init__(batch_records)
        self.channel = channel
        self._records = batch_records
        self.limit = min(batch_records, channel.desired_records)

    def has_credit(self) -> bool:
        """Whether the channel has room."""
        return self.channel.room > 0

    def send(self, batch: Batch) -> None:
        """Hand the batch over as it is."""
        self.channel.put(batch)
        self.limit = min(self._records, self.channel.desired_records)

    def mark_sent(self, element: Element) -> None:
        """Hand a marker over."""
        self.channel.put(element)


class Sender(Protocol):
    """The sending half of a connection; made by `penstock.runtime.network.remote_channel`."""

    credits: int
    desired_records: int
    #: Called when `desired_records` has changed.
    on_pace: Callable[[], None] | None

    def send_batch(self, payload: bytes, count: int) -> None:
        """Queue an encoded batch of so many records."""

    def send_marker(self, element: Element) -> None:
        """Queue a marker."""


class RemoteOutputChannel(OutputChannel):
    """To a task in another process.

    Arguments:
        sender: the connection's sending half.
        encode: makes bytes of a batch.
        batch_records, batch_bytes: a batch is sealed at so many records, or about so many bytes.
    """

    def __init__(
        self,
        sender: Sender,
        encode: Callable[[Records], bytes],
        batch_records: int,
        batch_bytes: int,
    ) -> None:
        super().__init__(batch_records)
        self.sender = sender
        self._encode = encode
        self._records, self._bytes = batch_records, batch_bytes
        #: How many records fit into the wanted size.
        self._fit = batch_records
        self._adjust()
        sender.on_pace = self._adjust

    def has_credit(self) -> bool:
        """Whether the other side has room."""
        return self.sender.credits > 0

    def send(self, batch: Batch) -> None:
        """Encode and queue a batch; learn how many records fit into the wanted size."""
        records = batch.records
        try:
            payload = self._encode(records)
        except BatchTooLargeError:
            if len(records) == 1:
                raise
            self._split(batch)
            return
        self.sender.credits -= 1
        self.sender.send_batch(payload, len(records))
        self._fit = max(1, self._bytes * len(records) // max(1, len(payload)))
        self._adjust()

    def _split(self, batch: Batch) -> None:
        """Put two halves of the batch behind it; the caller takes it from the sealed elements."""
        half = len(batch.records) // 2
        first, second = Batch(batch.records[:half]), Batch(batch.records[half:])
        self._sealed.popleft()
        self._sealed.extendleft([second, first, batch])
        self._fit = half
        self._adjust()

    def _adjust(self) -> None:
        self.limit = max(1, min(self._records, self._fit, self.sender.desired_records))

    def mark_sent(self, element: Element) -> None:
        """Queue a marker."""
        self.sender.send_marker(element)


def seal_due(outputs: Iterable[OutputChannel], clock: Callable[[], float], timeout: float) -> None:
    """Seal the batches that are full, and those that have waited for the buffer timeout."""
    now = -1.0
    for output in outputs:
        if not output.buffer:
            continue
        if len(output.buffer) >= output.limit:
            output.seal_full()
            if not output.buffer:
                continue
        if now < 0:
            now = clock()
        if output.since is None:
            output.since = now
        elif now - output.since >= timeout:
            output.seal()
