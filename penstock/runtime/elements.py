"""What travels on a channel: batches of records, and markers between them.

A barrier never overtakes a record. `EndOfInput` ends the data, not the channel: barriers still
follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.snapshot.events import SnapshotKind

__all__ = ["Barrier", "Batch", "Element", "EncodedBatch", "EndOfInput"]


class Batch:
    """A list of records. The list belongs to whoever takes it from the channel."""

    __slots__ = ("records",)

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __repr__(self) -> str:
        return f"Batch({self.records!r})"


class EncodedBatch:
    """A batch as it came over a socket; decoded when it is taken."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes | memoryview) -> None:
        self.payload = payload


@dataclass(frozen=True)
class Barrier:
    """Divides the stream into what snapshot `number` holds and what it does not."""

    number: int
    kind: SnapshotKind = SnapshotKind.CHECKPOINT


@dataclass(frozen=True)
class EndOfInput:
    """No more batches follow."""


Element = Batch | EncodedBatch | Barrier | EndOfInput
