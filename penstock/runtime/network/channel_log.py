"""In-flight logs that a task writes to a snapshot.

A channel adds its records to its `ChannelLog`. A `BatchLog` holds other batches that a barrier has
overtaken in a task. The checkpoint writer reads the parts of a log, and releases the log once it
is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import EncodedBatch, TimeElement
from penstock.runtime.network.spill_queue import Hold
from penstock.runtime.network.time_elements import to_marker
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.storage.in_flight_log import LogMarker, LogPart

Encode = Callable[[RecordBatch], bytes]


@dataclass(frozen=True)
class EdgeIdentity:
    """Identifies an edge of the graph in a log, also after a restart of the job.

    Arguments:
        producer, consumer: the uids of the operators at the two ends of the edge.
        input: the index of the consumer's input.
        partitioning: the name of the partitioning.
        name: the name of the edge in messages.
    """

    producer: str
    consumer: str
    input: int
    partitioning: str
    name: str


class InFlightLog(Protocol):
    """The records that were in flight on one channel, and are written to a snapshot.

    `source` and `target` are the indices of the subtasks at the ends of the channel. `records` is
    the number of records. If `keep` is false, the log counts the records and does not store them.
    """

    edge: EdgeIdentity
    source: int
    target: int
    records: int
    keep: bool

    @property
    def empty(self) -> bool:
        """Return whether the log has no records to store."""

    def parts(self) -> Iterator[LogPart | None]:
        """Yield the parts of the log in order, and None after each batch that the log encodes.

        The caller may pause at a None, since encoding takes time.
        """

    def release(self) -> None:
        """Free the records of the log, because they are durable or no longer needed."""


class BatchLog:
    """A log of batches that are in memory.

    Arguments:
        edge, source, target: the channel on which the batches are in flight.
        batches: the batches. They are encoded at once, since the task may change them later.
        encode: a function that returns the bytes of a batch.
        keep: whether to store the records, and not only their number.
    """

    def __init__(
        self,
        edge: EdgeIdentity,
        source: int,
        target: int,
        batches: Sequence[RecordBatch | TimeElement],
        encode: Encode,
        keep: bool,
    ) -> None:
        self.edge, self.source, self.target, self.keep = edge, source, target, keep
        self.records = sum(batch.count for batch in batches if isinstance(batch, RecordBatch))
        #: A log of watermarks only is needed: a source does not emit again what it has read.
        self.empty = not batches
        self._parts: list[LogPart] = []
        if keep:
            self._parts = [
                encode(batch) if isinstance(batch, RecordBatch) else to_marker(batch)
                for batch in batches
            ]

    def parts(self) -> Iterator[LogPart | None]:
        """Yield the encoded batches."""
        yield from self._parts

    def release(self) -> None:
        """Free the memory of the batches."""
        self._parts = []


class RecordedEntry:
    """A batch in memory that belongs to a log. Its payload is encoded when it is needed."""

    __slots__ = ("batch", "payload")

    def __init__(self, batch: RecordBatch | EncodedBatch) -> None:
        self.batch = batch
        self.payload = bytes(batch.payload) if isinstance(batch, EncodedBatch) else None


class ChannelLog:
    """The records in flight on one channel when a snapshot was taken.

    Arguments:
        number: the number of the snapshot.
        edge, channel: the identity of the channel.
        encode_entry: a function that encodes the batch of an entry and sets the payload of the
            entry.
        keep: whether to store the records, and not only their number.
    """

    def __init__(
        self,
        number: int,
        edge: EdgeIdentity,
        channel: ChannelId,
        encode_entry: Callable[[RecordedEntry], None],
        keep: bool,
    ) -> None:
        self.number, self.keep = number, keep
        self.edge = edge
        self.source, self.target = channel.source, channel.target
        self.records = 0
        self._encode_entry = encode_entry
        self._parts: list[RecordedEntry | LogMarker | Hold] = []

    @property
    def empty(self) -> bool:
        """Return whether the log has neither records nor watermarks.

        A log of watermarks only is needed, because records behind them may be in the log of the
        sender.
        """
        return not (self.records or any(isinstance(part, LogMarker) for part in self._parts))

    def count(self, records: int) -> None:
        """Add `records` to the number of records in the log."""
        self.records += records

    def add(self, part: RecordedEntry | LogMarker | Hold) -> None:
        """Append a part to the log: a batch in memory, or a range of a queue on disk."""
        self._parts.append(part)

    def parts(self) -> Iterator[LogPart | None]:
        """Yield the parts of the log in order, and None after each batch that the log encodes."""
        for part in self._parts:
            if isinstance(part, Hold):
                yield from part.ranges()
                continue
            if isinstance(part, LogMarker):
                yield part
                continue
            if part.payload is None:
                self._encode_entry(part)
                yield None
            assert part.payload is not None
            yield part.payload

    def release(self) -> None:
        """Free the log's batches in memory, and release its segments on disk."""
        parts, self._parts = self._parts, []
        for part in parts:
            if isinstance(part, Hold):
                part.release()
