"""Define the interface of the codec that the engine passes to readers and writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["RecordCodec"]


class RecordCodec(Protocol):
    """Encodes and decodes batches of records of a job, without pickle."""

    @property
    def encode_batch(self) -> Any:
        """A function that returns the bytes of a list of records."""

    @property
    def decode_batch(self) -> Any:
        """A function that returns the list of records of such bytes."""

    def schemas(self) -> list[Any]:
        """Return a description of the record classes for another job, as plain values."""

    def reading(self, schemas: Sequence[Any]) -> RecordCodec:
        """Return a codec for bytes of another job, given the schemas of that job."""
