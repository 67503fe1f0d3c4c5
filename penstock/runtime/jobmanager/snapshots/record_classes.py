"""The record classes of a job, and their schemas in its manifests.

A program mentions many classes, but only few of them are classes of records. So a manifest has the
fields of a class only if a worker has encoded an instance of it. Other classes, such as a dataclass
of settings, may change between two runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.coordination.compatibility import Difference
from penstock.snapshot.coordination.schema_compatibility import compare_schemas
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.schema import RecordSchema

_FIRST_WITH_FIELDS = 3
"""The first manifest format that contains the fields of record classes."""


class RecordClasses:
    """Numbers the record classes of a job, and records which of them are in use.

    Arguments:
        classes: the record classes of the program.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._table = TypeRegistry(classes)
        self._written: set[int] = set()

    def differences(self, manifest: Manifest) -> list[Difference]:
        """Return the changes of classes that make a snapshot unreadable."""
        return compare_schemas(manifest.types, self._table.schemas())

    def restore(self, manifest: Manifest) -> None:
        """Give the classes the numbers that they have in a snapshot.

        Classes that the snapshot does not have get the numbers after those.
        """
        self._table = self._table.extending(manifest.types)
        for index, schema in enumerate(manifest.types):
            if schema.fields is not None or manifest.format < _FIRST_WITH_FIELDS:
                self._written.add(index)

    def record_written(self, indices: Iterable[int]) -> None:
        """Record that workers have encoded instances of the classes with these indices."""
        self._written.update(indices)

    def schemas(self) -> tuple[RecordSchema, ...]:
        """Return the schemas for a manifest, with fields only for classes in use."""
        return tuple(
            schema if index in self._written else replace(schema, fields=None)
            for index, schema in enumerate(self._table.schemas())
        )

    def to_wire(self) -> list[Any]:
        """Return the schemas of all classes as plain values, to be sent to the workers."""
        return [schema.to_wire() for schema in self._table.schemas()]
