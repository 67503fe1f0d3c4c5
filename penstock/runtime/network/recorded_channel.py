"""Channels whose records in flight can be logged for a snapshot.

A log is taken on *arrival*: what waits in the channel when it begins, and what arrives until the
barrier does. Records are processed meanwhile, so a snapshot waits for nothing to drain. Algorithm
2 logs back-edges (`feedback_channel.py`); unaligned snapshots log every channel, what a task has in
hand, and what a barrier overtook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.dataflow.graph.compile import ChannelId
from penstock.runtime.network.elements import Barrier, Batch, Element, EncodedBatch, count_of
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.spill_queue import Hold
from penstock.runtime.serialization.record_batch import Records
from penstock.snapshot.storage.in_flight_log import LogPart

if TYPE_CHECKING:
    from penstock.runtime.network.input_gate import InputGate

__all__ = [
    "BatchLog",
    "ChannelLog",
    "EdgeIdentity",
    "InFlightLog",
    "RecordedChannel",
    "RecordedEntry",
]

Encode = Callable[[Records], bytes]


@dataclass(frozen=True)
class EdgeIdentity:
    """What a log is found by after a restart, together with the subtasks at its ends.

    Arguments:
        producer, consumer: uids of the operators.
        input: index of the consumer's input.
        partitioning: how records are spread, by its name.
        name: for people.
    """

    producer: str
    consumer: str
    input: int
    partitioning: str
    name: str


class InFlightLog(Protocol):
    """Records in flight on one channel, to be written to a snapshot.

    `source` and `target` are the subtasks at the ends of the edge, `records` is their number.
    `keep` is false where only that is wanted.
    """

    edge: EdgeIdentity
    source: int
    target: int
    records: int
    keep: bool

    def parts(self) -> Iterator[LogPart | None]:
        """The complete log in order; None between batches that had to be encoded first."""

    def release(self) -> None:
        """The log is written, or not needed any more."""


class BatchLog:
    """A log of batches that are at hand.

    Arguments:
        edge, source, target: which channel they are in flight on.
        batches: the records; encoded at once, since they may change before they are written.
        encode: makes bytes of records.
        keep: whether the records are wanted, and not only their number.
    """

    def __init__(
        self,
        edge: EdgeIdentity,
        source: int,
        target: int,
        batches: Sequence[Records],
        encode: Encode,
        keep: bool,
    ) -> None:
        self.edge, self.source, self.target, self.keep = edge, source, target, keep
        self.records = sum(map(len, batches))
        self._batches = [encode(batch) for batch in batches] if keep else []

    def parts(self) -> Iterator[LogPart | None]:
        """The batches."""
        yield from self._batches

    def release(self) -> None:
        """Let them go."""
        self._batches = []


class RecordedEntry:
    """A batch of a log that is in memory, with its bytes once they were needed."""

    __slots__ = ("batch", "payload")

    def __init__(self, batch: Batch | EncodedBatch) -> None:
        self.batch = batch
        self.payload = bytes(batch.payload) if isinstance(batch, EncodedBatch) else None


class ChannelLog:
    """What one channel held in flight at a cut.

    Arguments:
        number: the snapshot.
        channel: the channel.
        keep: whether the records are wanted, and not only their number.
    """

    def __init__(self, number: int, channel: RecordedChannel, keep: bool) -> None:
        self.number, self.keep = number, keep
        self.edge = channel.edge
        self.source, self.target = channel.id.source, channel.id.target
        self.records = 0
        self._channel = channel
        self._parts: list[RecordedEntry | Hold] = []

    def add(self, part: RecordedEntry | Hold) -> None:
        """Add what comes next."""
        self._parts.append(part)

    def parts(self) -> Iterator[LogPart | None]:
        """The complete log in order; None between batches that had to be encoded first."""
        for part in self._parts:
            if isinstance(part, Hold):
                yield from part.ranges()
                continue
            if part.payload is None:
                self._channel.encode_entry(part)
                yield None
            assert part.payload is not None
            yield part.payload

    def release(self) -> None:
        """The log is written, or not needed any more."""
        parts, self._parts = self._parts, []
        for part in parts:
            if isinstance(part, Hold):
                part.release()


class RecordedChannel(InputChannel):
    """A channel that can be logged; bounded by credits as any other.

    Arguments:
        id, gate, capacity, clock: as of a `InputChannel`.
        edge: its identity.
        encode: makes bytes of records, for the log.
        eager: tell of every barrier as it arrives, and not only of those that end a log.
    """

    def __init__(
        self,
        id: ChannelId,
        gate: InputGate,
        capacity: int,
        clock: Callable[[], float],
        *,
        edge: EdgeIdentity,
        encode: Encode,
        eager: bool = False,
    ) -> None:
        super().__init__(id, gate, capacity, clock)
        self.edge = edge
        #: Told of barriers as they arrive, with the channel; see `eager`.
        self.on_reached: Callable[[ChannelId, Barrier], None] | None = None
        self._encode = encode
        self._eager = eager
        self._log: ChannelLog | None = None
        #: Entries of logs whose batches wait in memory, by the identity of the batch; logs that
        #: hold the same batch share its entry.
        self._entries: dict[int, RecordedEntry] = {}

    def put(self, element: Element) -> None:
        """Add an element at the end; log it, if it is to be logged."""
        if self._log is not None and isinstance(element, Batch | EncodedBatch):
            self._log_entry(self._log, element)
        super().put(element)
        if isinstance(element, Barrier):
            self._arrived(element)

    def take(self) -> Element:
        """Remove the first element, and see to it that the log has it as it is now."""
        element = super().take()
        self._settle(element)
        return element

    def start_log(self, number: int, keep: bool = True) -> ChannelLog:
        """Log what waits here and what arrives before barrier `number` does."""
        log = ChannelLog(number, self, keep)
        if not self._log_queue(log):
            self._log = log
        return log

    def _log_queue(self, log: ChannelLog) -> bool:
        """Log what waits in memory; True if the log's barrier, or a later one, was met."""
        for element in self._queue:
            if isinstance(element, Barrier) and element.number >= log.number:
                self._announce(element)
                return True
            if isinstance(element, Batch | EncodedBatch):
                self._log_entry(log, element)
        return False

    def drop_log(self) -> None:
        """Log no more: the barrier is here, or the snapshot was given up."""
        self._log = None

    def encode_entry(self, entry: RecordedEntry) -> None:
        """Make the bytes of a logged batch, if nobody has yet."""
        if entry.payload is None:
            assert isinstance(entry.batch, Batch)
            entry.payload = self._encode(entry.batch.records)

    def _log_entry(self, log: ChannelLog, batch: Batch | EncodedBatch) -> None:
        log.records += count_of(batch)
        if not log.keep:
            return
        # The batch may be part of the log before this one, too, if the task is slow.
        entry = self._entries.get(id(batch))
        if entry is None:
            entry = self._entries[id(batch)] = RecordedEntry(batch)
        log.add(entry)

    def _settle(self, element: Element) -> None:
        if self._entries and (entry := self._entries.pop(id(element), None)) is not None:
            # The task may change the records; the log must hold them as they are now.
            self.encode_entry(entry)

    def _arrived(self, barrier: Barrier) -> None:
        """A barrier has come to the gate."""
        if self._log is not None and barrier.number >= self._log.number:
            self.drop_log()
        elif not self._eager:
            return
        self._announce(barrier)

    def _announce(self, barrier: Barrier) -> None:
        if self.on_reached is not None:
            self.on_reached(self.id, barrier)
