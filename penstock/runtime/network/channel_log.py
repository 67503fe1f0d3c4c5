"""Logs of records in flight, on their way into a snapshot.

A `ChannelLog` is filled by the channel that it belongs to; a `BatchLog` holds batches that the
task itself had. The checkpoint writer reads their parts, and releases them once they are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import EncodedBatch
from penstock.runtime.network.spill_queue import Hold
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.storage.in_flight_log import LogPart

__all__ = ["BatchLog", "ChannelLog", "EdgeIdentity", "Encode", "InFlightLog", "RecordedEntry"]

Encode = Callable[[RecordBatch], bytes]


@dataclass(frozen=True)
class EdgeIdentity:
    """Identifies the edge of a log after a restart, with the subtasks at its ends.

    Arguments:
        producer, consumer: uids of the operators.
        input: index of the consumer's input.
        partitioning: the name of the partitioning.
        name: for people.
    """

    producer: str
    consumer: str
    input: int
    partitioning: str
    name: str


class InFlightLog(Protocol):
    """The records that were in flight on one channel, to be written to a snapshot.

    `source` and `target` are the subtasks at the ends of the edge, `records` is the number of
    records. `keep` is false if only that number is wanted.
    """

    edge: EdgeIdentity
    source: int
    target: int
    records: int
    keep: bool

    def parts(self) -> Iterator[LogPart | None]:
        """Return the log in order; None between batches that had to be encoded first."""

    def release(self) -> None:
        """Free what the log holds: it is durable, or not needed any more."""


class BatchLog:
    """A log of batches that are in memory.

    Arguments:
        edge, source, target: the channel that they are in flight on.
        batches: the records. They are encoded at once, since the task may change them later.
        encode: returns records as bytes.
        keep: whether the records are wanted, and not only their number.
    """

    def __init__(
        self,
        edge: EdgeIdentity,
        source: int,
        target: int,
        batches: Sequence[RecordBatch],
        encode: Encode,
        keep: bool,
    ) -> None:
        self.edge, self.source, self.target, self.keep = edge, source, target, keep
        self.records = sum(map(len, batches))
        self._batches = [encode(batch) for batch in batches] if keep else []

    def parts(self) -> Iterator[LogPart | None]:
        """Return the encoded batches."""
        yield from self._batches

    def release(self) -> None:
        """Free the batches."""
        self._batches = []


class RecordedEntry:
    """A batch of a log that is in memory, with its bytes once they were needed."""

    __slots__ = ("batch", "payload")

    def __init__(self, batch: RecordBatch | EncodedBatch) -> None:
        self.batch = batch
        self.payload = bytes(batch.payload) if isinstance(batch, EncodedBatch) else None


class ChannelLog:
    """The records in flight on one channel when a snapshot was taken.

    Arguments:
        number: the snapshot.
        edge, channel: the identity of the channel.
        encode_entry: sets the payload of an entry that has none.
        keep: whether the records are wanted, and not only their number.
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
        self._parts: list[RecordedEntry | Hold] = []

    def count(self, records: int) -> None:
        """Add to the number of records."""
        self.records += records

    def add(self, part: RecordedEntry | Hold) -> None:
        """Append a part: a batch in memory, or a range of a queue on disk."""
        self._parts.append(part)

    def parts(self) -> Iterator[LogPart | None]:
        """Return the log in order; None between batches that had to be encoded first."""
        for part in self._parts:
            if isinstance(part, Hold):
                yield from part.ranges()
                continue
            if part.payload is None:
                self._encode_entry(part)
                yield None
            assert part.payload is not None
            yield part.payload

    def release(self) -> None:
        """Free the batches, and the segments on disk that were kept for the log."""
        parts, self._parts = self._parts, []
        for part in parts:
            if isinstance(part, Hold):
                part.release()
