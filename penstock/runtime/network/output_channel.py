"""The sending end of a channel, which makes batches of records and sends them.

Partitioners append records to the buffer of an output channel. To *seal* the buffer is to make
batches of its records. The task seals the buffer when it is large enough, or when partial batches
are sent (`task/partial_batches.py`). Sealed batches wait in the channel until there are credits for
them. While sealed batches wait, the task takes no more input: this is backpressure.

No function here awaits. Elements for another process are passed to a `Sender`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.dataflow.errors import JobError
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.elements import Barrier, Element, TimeElement, WatermarkStatus
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.serialization.arrow_batch import ArrowBuffer
from penstock.runtime.serialization.record_batch import ColumnBuffer, RecordBatch, RecordBuffer

#: The maximum size of an Arrow batch, as a multiple of `batch_bytes`. The cost of an Arrow batch
#: hardly depends on its size, and a row of it costs a tenth of a record.
ARROW_BATCH_SIZE = 8


class BatchTooLargeError(JobError):
    """Raised if an encoded batch does not fit into a frame."""


class OutputChannel(ABC):
    """The sending end of one channel.

    Arguments:
        batch_records: the number of records at which the buffer is sealed.
    """

    def __init__(self, batch_records: int) -> None:
        self.pending = RecordBuffer()
        #: Arrow batches that are not sealed yet, or None. They are before all records of `pending`.
        self.gathered: ArrowBuffer | None = None
        #: The number of records at which the buffer is sealed now. It is lower than
        #: `batch_records` for large records and slow consumers.
        self.limit = batch_records
        #: The edge of this channel in logs. It is None unless barriers may overtake records.
        self.edge: EdgeIdentity | None = None
        self.target = 0
        #: Whether barriers do not overtake records here although they do on other edges.
        self.aligned = False
        #: The sealed elements that wait for a credit.
        self.sealed: deque[Element] = deque()
        #: The highest number of a barrier that was sent; -1 before the first barrier.
        self._last_barrier = -1
        #: The id of the link of the channel; -1 in tests of a channel alone.
        self.link = -1
        #: Functions that see each batch before it is sent, while a client looks at the edge.
        self._watchers: tuple[Callable[[RecordBatch], None], ...] = ()

    def set_identity(
        self, edge: EdgeIdentity, target: int, aligned: bool = False, link: int = -1
    ) -> None:
        """Set the edge and the target subtask of the in-flight logs of this channel.

        Arguments:
            edge: the edge.
            target: the target subtask.
            aligned: whether barriers do not overtake records on this edge.
            link: the id of the link.
        """
        self.edge, self.target, self.aligned, self.link = edge, target, aligned, link

    def watch(self, watcher: Callable[[RecordBatch], None]) -> None:
        """Call a function with each batch before it is sent. It must not raise or change it."""
        self._watchers += (watcher,)

    def unwatch(self, watcher: Callable[[RecordBatch], None]) -> None:
        """No longer call a function."""
        self._watchers = tuple(one for one in self._watchers if one != watcher)

    @property
    def buffer(self) -> list[Any]:
        """Return the records that are not sealed yet.

        If the buffer holds columns, return its first column that is not constant.
        """
        return self.pending.records

    def buffer_columns(self, layout: Sequence[tuple[Any] | None]) -> RecordBuffer:
        """Replace the empty buffer by one that holds columns, and return the new buffer.

        Arguments:
            layout: the layout of the columns; see `ColumnBuffer`.
        """
        self.pending = ColumnBuffer(layout)
        return self.pending

    # ---- methods that seal the buffer

    def seal(self) -> None:
        """Make batches of all records in the buffer, which is empty afterwards."""
        if self.gathered is not None:
            self.seal_arrow()
        self._cut_full_batches()
        if self.pending.records:
            self._seal_buffer()

    def append_arrow(self, batch: RecordBatch) -> None:
        """Append an Arrow batch behind all records of the channel.

        Small batches gather until they have `arrow_limit()` rows, because a batch of a few rows
        costs as much as a large one.
        """
        if self.pending.records:
            self.seal()
        if self.gathered is None:
            self.gathered = ArrowBuffer()
        self.gathered.append(batch)
        if self.gathered.count >= self.arrow_limit():
            self.seal_arrow()

    def seal_arrow(self) -> None:
        """Make batches of the Arrow batches that were gathered."""
        if self.gathered is None:
            return
        gathered, self.gathered = self.gathered, None
        limit = self.arrow_limit()
        for batch in gathered.merged():
            if batch.count <= limit + limit // 2:
                self.sealed.append(batch)
                continue
            for begin in range(0, batch.count, limit):
                self.sealed.append(batch.slice(begin, begin + limit))

    def seal_full(self) -> None:
        """Make full batches, and leave the other records in the buffer."""
        self.seal_arrow()
        self._cut_full_batches()
        if len(self.pending.records) >= self.limit:
            self._seal_buffer()

    def _cut_full_batches(self) -> None:
        """Make batches until at most 1.5 times `limit` records are left.

        Cutting copies every record. If the records have left the processor's cache, copying costs
        as much as routing. To copy less, a batch may have 1.5 times `limit` records.
        """
        pending, limit = self.pending, self.limit
        count, most = len(pending.records), limit + limit // 2
        start = 0
        while count - start > most:
            self.sealed.append(pending.copy(start, start + limit))
            start += limit
        if start:
            pending.drop(start)

    def _seal_buffer(self) -> None:
        """Make one batch of the whole buffer, without copying the records."""
        self.sealed.append(self.pending.take())

    # ---- methods that send elements

    def mark(self, element: Element) -> None:
        """Append a marker behind all records that were emitted before."""
        self.seal()
        sealed = self.sealed
        if sealed and isinstance(element, Watermark) and isinstance(sealed[-1], Watermark):
            sealed.pop()  # no record is between the two watermarks, so the older has no meaning
        sealed.append(element)

    def overtake(self, barrier: Barrier) -> list[RecordBatch | TimeElement]:
        """Send a barrier ahead of all elements that wait in this channel.

        If the barrier already waits in the channel, it overtakes only the elements before it. If
        the barrier was sent before, the channel does nothing. In an aligned channel, the barrier
        waits behind all elements. An older barrier that it overtakes is not sent any more, so that
        barriers arrive in the order of their numbers.

        Returns:
            The batches and watermarks that the barrier overtook, in order. They remain in the
            channel.
        """
        if barrier.number <= self._last_barrier:
            return []
        if self.aligned:
            waiting = {one.number for one in self.sealed if isinstance(one, Barrier)}
            if barrier.number not in waiting:
                self.mark(barrier)
            return []
        self.seal()
        overtaken: list[RecordBatch | TimeElement] = []
        for element in list(self.sealed):
            if isinstance(element, Barrier):
                # It is this barrier, or the snapshot of an older one is given up for this one.
                self.sealed.remove(element)
                if element.number == barrier.number:
                    break
            elif isinstance(element, RecordBatch | Watermark | WatermarkStatus):
                overtaken.append(element)
        self._push_marker(barrier)
        return overtaken

    def push(self) -> bool:
        """Send sealed elements until there is no credit for the next one.

        Returns:
            Whether all sealed elements were sent.
        """
        while self.sealed:
            element = self.sealed[0]
            if isinstance(element, RecordBatch):
                if not self.has_credit():
                    return False
                for watcher in self._watchers:
                    watcher(element)
                self.send(element)
            else:
                self._push_marker(element)
            self.sealed.popleft()
        return True

    def _push_marker(self, element: Element) -> None:
        if isinstance(element, Barrier):
            self._last_barrier = max(self._last_barrier, element.number)
        self.send_marker(element)

    @abstractmethod
    def arrow_limit(self) -> int:
        """Return the number of rows at which Arrow batches are sealed.

        In contrast to `limit`, it may be greater than `batch_records`.
        """

    @abstractmethod
    def has_credit(self) -> bool:
        """Return whether a batch may be sent now."""

    @abstractmethod
    def takes_partial(self) -> bool:
        """Return whether the receiver has taken the earlier batches, or all but a few.

        Until then a partial batch could not be processed earlier if it were sent, and would have
        fewer records. (TCP has the same rule: Nagle's algorithm.)
        """

    @abstractmethod
    def send(self, batch: RecordBatch) -> None:
        """Send a batch. The caller has checked that there is a credit for it."""

    @abstractmethod
    def send_marker(self, element: Element) -> None:
        """Send a marker, which needs no credit."""


class LocalOutputChannel(OutputChannel):
    """The sending end of a channel to a task in the same process.

    Arguments:
        channel: the receiving end of the channel.
        batch_records: the maximum number of records in a batch.
    """

    def __init__(self, channel: InputChannel, batch_records: int) -> None:
        super().__init__(batch_records)
        self.channel = channel
        self._records = batch_records
        self.limit = min(batch_records, channel.desired_records)

    def arrow_limit(self) -> int:
        """Return the number of rows that the receiving task wants in a batch."""
        return self.channel.desired_records

    def has_credit(self) -> bool:
        """Return whether the receiving end has room for another batch."""
        return self.channel.room > 0

    def takes_partial(self) -> bool:
        """Return whether the receiving end has no batches."""
        return self.channel.room >= self.channel.capacity

    def send(self, batch: RecordBatch) -> None:
        """Put a batch into the receiving end, without copying the batch."""
        self.channel.put(batch)
        self.limit = min(self._records, self.channel.desired_records)

    def send_marker(self, element: Element) -> None:
        """Put a marker into the receiving end."""
        self.channel.put(element)


class Sender(Protocol):
    """The sending half of a connection, which `SendingHalf` implements."""

    @property
    def credits(self) -> int:
        """Return the number of batches that may be sent now."""

    @property
    def takes_partial(self) -> bool:
        """Return whether the receiver has taken all batches but those whose credits it keeps."""

    @property
    def desired_records(self) -> int:
        """Return the number of records that the receiver wants in a batch."""

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Set a callback that runs when `desired_records` may have changed."""

    def send_batch(self, payload: bytes, count: int) -> None:
        """Send an encoded batch of `count` records, which uses one credit."""

    def send_marker(self, element: Element) -> None:
        """Send a marker, such as a barrier."""

    def send_steps(self, data: bytes) -> None:
        """Send steps that the worker of the receiver does not know; see `step_logs.py`."""


class RemoteOutputChannel(OutputChannel):
    """The sending end of a channel to a task in another process.

    Arguments:
        sender: the sending half of the connection.
        encode: a function that returns the bytes of a batch.
        batch_records: the maximum number of records in a batch.
        batch_bytes: the approximate maximum size of a batch, in bytes.
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
        #: The number of records that fit into `batch_bytes`, estimated from the last batch.
        self._fit = batch_records
        self._adjust_limit()
        sender.report_desired_records(self._adjust_limit)

    def arrow_limit(self) -> int:
        """Return the number of rows that the receiver wants, and that fit into a batch."""
        return max(1, min(ARROW_BATCH_SIZE * self._fit, self.sender.desired_records))

    def has_credit(self) -> bool:
        """Return whether the sender has a credit for another batch."""
        return self.sender.credits > 0

    def takes_partial(self) -> bool:
        """Return whether the receiver has taken the earlier batches, or all but a few."""
        return self.sender.takes_partial

    def send(self, batch: RecordBatch) -> None:
        """Encode and send a batch, and adjust `limit` to the size of its records.

        A batch that is too large for a frame is split instead.

        Raises:
            BatchTooLargeError: if a single record does not fit into a frame.
        """
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
        """Insert the two halves of a batch behind the batch itself.

        The batch is the first sealed element, which `push` removes afterwards.
        """
        half = len(batch) // 2
        first, second = batch.slice(0, half), batch.slice(half)
        self.sealed.popleft()
        self.sealed.extendleft([second, first, batch])
        self._fit = half
        self._adjust_limit()

    def _adjust_limit(self) -> None:
        self.limit = max(1, min(self._records, self._fit, self.sender.desired_records))

    def send_marker(self, element: Element) -> None:
        """Pass a marker to the sender."""
        self.sender.send_marker(element)
