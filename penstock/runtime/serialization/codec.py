"""Encode records and state values as bytes, and decode them equal in value and in type.

A value that can't come back equal in value and type is refused with an `UnsupportedTypeError`.
Identity is not kept: a list that occurs twice in a record comes back as two equal lists.

Nothing is pickled, and nothing is imported by a name found in data. docs/types.md lists the types
that are carried. Frames and files are not made here.
"""

from __future__ import annotations

from typing import Any

from penstock.runtime.serialization.batch_codec import BatchCodec
from penstock.runtime.serialization.immutability import Copier
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_codec import ValueCodec

__all__ = ["Codec"]


class Codec:
    """Encodes, decodes and copies the records and state values of a job.

    Encoding raises `UnsupportedTypeError` for what can't be carried. Decoding raises
    `ProtocolError` for bytes that no codec with this registry wrote.

    Arguments:
        registry: the job's record classes. It may grow while the codec is in use.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        values = ValueCodec(registry)
        batches = BatchCodec(registry, values)
        copier = Copier(registry, self._round_trip)
        # Bound methods, not methods that delegate: some are called once for each record.
        self.encode_value = values.encode
        self.encode_values = values.encode_all
        self.decode_value = values.decode
        self.encode_batch = batches.encode
        self.decode_batch = batches.decode
        self.encode_record_batch = batches.encode_record_batch
        self.decode_record_batch = batches.decode_record_batch
        self.is_immutable = copier.is_immutable
        self.is_immutable_batch = copier.is_immutable_batch
        self.copy_mutable = copier.copy_mutable

    def _round_trip(self, records: list[Any]) -> list[Any]:
        return self.decode_batch(self.encode_batch(records))

    def written_types(self) -> list[int]:
        """Return the indices of the record classes of which an instance was encoded."""
        return self._registry.written()

    @property
    def hash_implies_immutable(self) -> bool:
        """Return whether each hashable value is deeply immutable."""
        return self._registry.hash_implies_immutable
