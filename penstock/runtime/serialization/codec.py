"""Encode records and state values as bytes, and decode them to equal values.

If decoding could not return an equal value of the same type, the codec raises
`UnsupportedTypeError`. Identity is not preserved: a list that occurs twice in a record is decoded
as two equal lists.

The codec does not use pickle, and never imports a module or class by a name found in data.
docs/guides/types.md lists the supported types. Other modules write the bytes into frames and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.runtime.serialization.batch_codec import BatchCodec
from penstock.runtime.serialization.immutability import Copier
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_codec import ValueCodec
from penstock.snapshot.metadata.schema import RecordSchema


class Codec:
    """Encodes, decodes and copies the records and state values of a job.

    Encoding raises `UnsupportedTypeError` for a value of an unsupported type. Decoding raises
    `ProtocolError` for bytes that no codec with this registry has written.

    Arguments:
        registry: the job's record classes. Classes may be added while the codec is in use.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        values = ValueCodec(registry)
        batches = BatchCodec(registry, values)
        copier = Copier(registry, self._round_trip)
        # These are bound methods. Methods that delegate would be slower, and some are called for
        # each record.
        self.encode_value = values.encode
        self.encode_values = values.encode_all
        self.decode_value = values.decode
        self.decode_values = values.decode_all
        self.why_unsupported = values.why_unsupported
        self.encode_batch = batches.encode
        self.decode_batch = batches.decode
        self.encode_record_batch = batches.encode_record_batch
        self.decode_record_batch = batches.decode_record_batch
        self.is_immutable = copier.is_immutable
        self.is_immutable_batch = copier.is_immutable_batch
        self.copy_mutable = copier.copy_mutable

    def _round_trip(self, records: list[Any]) -> list[Any]:
        return self.decode_batch(self.encode_batch(records))

    def schemas(self) -> list[Any]:
        """Return the schemas of the record classes, as plain values."""
        return [schema.to_wire() for schema in self._registry.schemas()]

    def reading(self, schemas: Sequence[Any]) -> Codec:
        """Return a codec for bytes of another job, given the schemas of that job."""
        return Codec(self._registry.extending(map(RecordSchema.from_wire, schemas)))

    def written_types(self) -> list[int]:
        """Return the indices of all record classes with at least one encoded instance."""
        return self._registry.written()

    @property
    def hash_implies_immutable(self) -> bool:
        """Return whether every hashable value of a supported type is deeply immutable."""
        return self._registry.hash_implies_immutable
