"""The sending end of a channel: it makes batches of records, and sends them as credits allow.

Partitioners append records to the buffer of an output channel. The channel seals the buffer into
batches when it is large enough, when its oldest record is old enough, or when the task has nothing
else to do. Sealed elements wait in the channel until there is a credit for them. A task whose
output channels hold sealed elements takes no more input: that is backpressure.

Nothing here awaits; elements for another process are passed to a `Sender`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from penstock.dataflow.errors import JobError
from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.elements import Barrier, Element
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.serialization.record_batch import ColumnBuffer, RecordBatch, RecordBuffer

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
        batch_records: the number of records at which a batch is sealed.
    """

    def __init__(self, batch_records: int) -> None:
        self.pending = RecordBuffer()
        #: The number of records in a batch; lowered for large records and slow consumers.
        self.limit = batch_records
        #: Which channel this is the end of. Set where barriers may overtake records.
        self.edge: EdgeIdentity | None = None
        self.target = 0
        #: When the buffer was first seen with records; None if it is empty or was not looked at.
        self._since: float | None = None
        self._sealed: deque[Element] = deque()
        #: The highest barrier that was sent.
        self._last_barrier = -1

    def set_identity(self, edge: EdgeIdentity, target: int) -> None:
        """Set the edge and the target subtask under which records are logged."""
        self.edge, self.target = edge, target

    @property
    def buffer(self) -> list[Any]:
        """Return the records that are not sealed yet; with columns, the first that varies."""
        return self.pending.records

    @property
    def waiting(self) -> int:
        """Return the number of sealed elements that wait for a credit."""
        return len(self._sealed)

    def buffer_columns(self, layout: Sequence[tuple[Any] | None]) -> RecordBuffer:
        """Buffer columns instead of records from now on, and return their buffer.

        Arguments:
            layout: of the columns; see `ColumnBuffer`. The buffer must be empty.
        """
        self.pending = ColumnBuffer(layout)
        return self.pending

    # ---- sealing

    def seal(self) -> None:
        """Make batches of all records in the buffer."""
        self._cut_full_batches()
        if self.pending.records:
            self._seal_buffer()
        self._since = None

    def seal_full(self) -> None:
        """Make full batches; records that do not fill one stay in the buffer."""
        self._cut_full_batches()
        if len(self.pending.records) >= self.limit:
            self._seal_buffer()
        self._since = None

    def seal_older_than(self, timeout: float, now: float) -> None:
        """Make batches if the buffer has had records for `timeout` seconds."""
        if self._since is None:
            self._since = now
        elif now - self._since >= timeout:
            self.seal()

    def _cut_full_batches(self) -> None:
        """Make batches of `limit` records until at most half as many more are left.

        Cutting copies every record, which costs as much as routing it if the records have left the
        processor's cache. For that reason a batch may be larger than the limit by half.
        """
        pending, limit = self.pending, self.limit
        count, most = len(pending.records), limit + limit // 2
        start = 0
        while count - start > most:
            self._sealed.append(pending.copy(start, start + limit))
            start += limit
        if start:
            pending.drop(start)

    def _seal_buffer(self) -> None:
        """Make a batch of the buffer's own list, without a copy."""
        self._sealed.append(self.pending.take())

    # ---- sending

    def mark(self, element: Element) -> None:
        """Put a marker behind all records that were emitted."""
        self.seal()
        self._sealed.append(element)

    def overtake(self, barrier: Barrier) -> list[RecordBatch]:
        """Send a barrier ahead of all elements that wait here.

        If the barrier itself waits here already, it overtakes only the elements before it. If it
        was sent on this channel before, it overtakes nothing.

        Returns the overtaken batches, in order. They remain in the channel.
        """
        if barrier.number <= self._last_barrier:
            return []
        self.seal()
        overtaken: list[RecordBatch] = []
        for element in self._sealed:
            if isinstance(element, Barrier) and element.number == barrier.number:
                self._sealed.remove(element)
                break
            if isinstance(element, RecordBatch):
                overtaken.append(element)
        self._push_marker(barrier)
        return overtaken

    def push(self) -> bool:
        """Send sealed elements as far as credits allow; return whether none is left."""
        while self._sealed:
            element = self._sealed[0]
            if isinstance(element, RecordBatch):
                if not self.has_credit():
                    return False
                self.send(element)
            else:
                self._push_marker(element)
            self._sealed.popleft()
        return True

    def _push_marker(self, element: Element) -> None:
        if isinstance(element, Barrier):
            self._last_barrier = max(self._last_barrier, element.number)
        self.send_marker(element)

    @abstractmethod
    def has_credit(self) -> bool:
        """Return whether a batch may be sent now."""

    @abstractmethod
    def send(self, batch: RecordBatch) -> None:
        """Send a batch, for which there is a credit."""

    @abstractmethod
    def send_marker(self, element: Element) -> None:
        """Send a marker."""


class LocalOutputChannel(OutputChannel):
    """A channel to a task in the same process.

    Arguments:
        channel: the receiving end.
        batch_records: the maximum number of records in a batch.
    """

    def __init__(self, channel: InputChannel, batch_records: int) -> None:
        super().__init__(batch_records)
        self.channel = channel
        self._records = batch_records
        self.limit = min(batch_records, channel.desired_records)

    def has_credit(self) -> bool:
        """Return whether the receiving end has room."""
        return self.channel.room > 0

    def send(self, batch: RecordBatch) -> None:
        """Pass the batch on without a copy."""
        self.channel.put(batch)
        self.limit = min(self._records, self.channel.desired_records)

    def send_marker(self, element: Element) -> None:
        """Pass a marker on."""
        self.channel.put(element)


class Sender(Protocol):
    """The sending half of a connection; see `penstock.runtime.network.remote_channel`."""

    @property
    def credits(self) -> int:
        """Return how many batches may be sent now."""

    @property
    def desired_records(self) -> int:
        """Return how many records the receiver wants in a batch."""

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `desired_records` has changed."""

    def send_batch(self, payload: bytes, count: int) -> None:
        """Queue an encoded batch of `count` records; it uses one credit."""

    def send_marker(self, element: Element) -> None:
        """Queue a marker."""


class RemoteOutputChannel(OutputChannel):
    """A channel to a task in another process.

    Arguments:
        sender: the sending half of the connection.
        encode: returns the bytes of a batch.
        batch_records: the maximum number of records in a batch.
        batch_bytes: the approximate maximum size of a batch.
    """

    def __init__(
        self,
        sender: Sender,
        encode: Callable[[RecordBatch], bytes],
        batch_records: int,
        batch_bytes: int,
    ) -> None:
        super().__init__(batch_records)
        self.sender = sender
        self._encode = encode
        self._records, self._bytes = batch_records, batch_bytes
        #: The number of records that fit into `batch_bytes`.
        self._fit = batch_records
        self._adjust_limit()
        sender.report_desired_records(self._adjust_limit)

    def has_credit(self) -> bool:
        """Return whether the receiver has room."""
        return self.sender.credits > 0

    def send(self, batch: RecordBatch) -> None:
        """Encode and queue a batch; adjust the limit to the size of its records."""
        count = len(batch)
        try:
            payload = self._encode(batch)
        except BatchTooLargeError:
            if count == 1:
                raise
            self._split(batch)
            return
        self.sender.send_batch(payload, count)
        self._fit = max(1, self._bytes * count // max(1, len(payload)))
        self._adjust_limit()

    def _split(self, batch: RecordBatch) -> None:
        """Put two halves behind the first sealed element, which `push` removes afterwards."""
        half = len(batch) // 2
        first, second = batch.slice(0, half), batch.slice(half)
        self._sealed.popleft()
        self._sealed.extendleft([second, first, batch])
        self._fit = half
        self._adjust_limit()

    def _adjust_limit(self) -> None:
        self.limit = max(1, min(self._records, self._fit, self.sender.desired_records))

    def send_marker(self, element: Element) -> None:
        """Queue a marker."""
        self.sender.send_marker(element)


def seal_due(outputs: Iterable[OutputChannel], clock: Callable[[], float], timeout: float) -> None:
    """Seal full batches, and those whose records have waited for `timeout` seconds."""
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
        output.seal_older_than(timeout, now)
