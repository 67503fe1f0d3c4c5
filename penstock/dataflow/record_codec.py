"""Define the interface of the codec that the engine passes to readers and writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.dataflow.type_variables import PlainValue, UserValue


class RecordCodec(Protocol):
    """Encodes and decodes batches of records of a job, without pickle."""

    @property
    def encode_batch(self) -> Callable[[list[UserValue]], bytes]:
        """A function that returns the bytes of a list of records."""

    @property
    def decode_batch(self) -> Callable[[bytes], list[UserValue]]:
        """A function that returns the list of records of such bytes."""

    def schemas(self) -> list[PlainValue]:
        """Return a description of the record classes for another job, as plain values."""

    def reading(self, schemas: Sequence[PlainValue]) -> RecordCodec:
        """Return a codec for bytes of another job, given the schemas of that job."""
