"""What travels on a channel: batches of records, and markers between them.

A barrier overtakes records in unaligned snapshots only, which log them. `EndOfInput` ends the data,
not the channel: barriers still follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.serialization.record_batch import Records
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = ["Barrier", "Batch", "Element", "EncodedBatch", "EndOfInput", "count_of"]


class Batch:
    """Records. The list, or the columns, belong to whoever takes it from the channel."""

    __slots__ = ("records",)

    def __init__(self, records: Records) -> None:
        self.records = records

    def __repr__(self) -> str:
        return f"Batch({self.records!r})"


class EncodedBatch:
    """A batch as it came over a socket, or from disk; decoded when it is taken.

    Arguments:
        payload: what the codec made of the records.
        count: how many records that is.
    """

    __slots__ = ("count", "payload")

    def __init__(self, payload: bytes | memoryview, count: int) -> None:
        self.payload = payload
        self.count = count


@dataclass(frozen=True)
class Barrier:
    """Divides the stream into what snapshot `number` holds and what it does not.

    An `urgent` one has overtaken records, and is not to be waited with.
    """

    number: int
    kind: SnapshotKind = SnapshotKind.CHECKPOINT
    urgent: bool = False


@dataclass(frozen=True)
class EndOfInput:
    """No more batches follow."""


Element = Batch | EncodedBatch | Barrier | EndOfInput


def count_of(batch: Batch | EncodedBatch) -> int:
    """How many records a batch has."""
    return len(batch.records) if isinstance(batch, Batch) else batch.count
