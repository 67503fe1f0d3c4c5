"""The registry of a job's record classes, which gives each class an index.

Encoded data refers to a class by its index, never by its name. So the decoder imports nothing by a
name found in data. A snapshot's manifest lists the schemas of the classes by index
(`RecordSchema`). A restored job keeps those indices, and appends its new classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.dataflow.errors import ProtocolError, Recoverability
from penstock.runtime.serialization.class_serializers import serializer_for
from penstock.runtime.serialization.record_schemas import name_of
from penstock.runtime.serialization.record_serializers import (
    FormerSerializer,
    RecordSerializer,
    UnsupportedTypeError,
)
from penstock.snapshot.metadata.schema import RecordSchema


class TypeRegistry:
    """Maps the record classes of a job to the indices that encoded data contains.

    The index of a class is its position in the order of registration, and never changes. A restored
    job keeps the indices of its snapshot: see `extending`. A class whose fields have changed has
    several entries, one for each version that older data may refer to.

    Arguments:
        classes: the classes to register: dataclasses, NamedTuples and Enums.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        # An entry is a schema instead of a serializer if older data may refer to the class, but
        # this job does not have the class.
        self._entries: list[RecordSerializer | RecordSchema] = []
        self._by_class: dict[type, RecordSerializer] = {}
        #: Whether every hashable value of a supported type is deeply immutable.
        self.hash_implies_immutable = True
        for kind in classes:
            self.add(kind)

    def add(self, kind: type) -> None:
        """Register a class, unless it is registered already.

        Raises `UnsupportedTypeError` if the class cannot be a record class, or if another class of
        the same name is registered.
        """
        if kind in self._by_class:
            return
        if isinstance(kind, type) and name_of(kind) in self.names():
            raise UnsupportedTypeError(
                f"another class {name_of(kind)} is registered; classes are known by their names, "
                "so give one of the two another name"
            )
        self._append(kind)

    def _append(self, kind: type) -> None:
        serializer = serializer_for(len(self._entries), kind)
        self._entries.append(serializer)
        self._by_class[kind] = serializer
        self.hash_implies_immutable &= serializer.hash_implies_immutable()

    def names(self) -> list[str]:
        """Return the names of the classes by index, in the form `module:qualname`."""
        return [schema.name for schema in self.schemas()]

    def schemas(self) -> list[RecordSchema]:
        """Return the schemas of the classes by index."""
        return [e if isinstance(e, RecordSchema) else e.schema for e in self._entries]

    def written(self) -> list[int]:
        """Return the indices of all classes with at least one encoded instance."""
        serializers = self._by_class.values()
        return [serializer.index for serializer in serializers if serializer.written]

    def extending(self, former: Iterable[RecordSchema]) -> TypeRegistry:
        """Return a registry with the entries of an older one, then the new classes.

        A class that this registry does not have keeps its index. Only data that refers to that
        class cannot be decoded. A class whose fields have changed has two entries. The old entry
        reads rows with the former fields, and maps them by name. The new entry has a new index.

        Arguments:
            former: the schemas of the older registry, by index.
        """
        registry = TypeRegistry()
        kinds = {name_of(kind): kind for kind in self._by_class}
        for schema in former:
            kind = kinds.get(schema.name)
            if kind is None:
                registry._entries.append(schema)
            elif kind not in registry._by_class and self._by_class[kind].can_read(schema):
                registry._append(kind)
            else:
                index = len(registry._entries)
                registry._entries.append(FormerSerializer(index, schema, self._by_class[kind]))
        for kind in self._by_class:
            if kind not in registry._by_class:
                registry._append(kind)
        return registry

    def serializer_of(self, kind: type) -> RecordSerializer | None:
        """Return the serializer of this exact class, or None if it is not registered."""
        return self._by_class.get(kind)

    def serializer_at(self, index: int) -> RecordSerializer:
        """Return the serializer with this index.

        Raises `ProtocolError` if the index is unknown, or if the job does not have the class.
        """
        if type(index) is not int or not 0 <= index < len(self._entries):
            raise ProtocolError(f"data refers to record class {index!r}, which the job has not")
        entry = self._entries[index]
        if isinstance(entry, RecordSchema):
            raise ProtocolError(
                f"data refers to the record class {entry.name}, which is not registered any more; "
                "register it with env.register_type to read that data",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        # A serializer holds generated functions, which cannot be pickled.
        return (_rebuild, (list(self._by_class), self.schemas()))


def _rebuild(classes: list[type], schemas: list[RecordSchema]) -> TypeRegistry:
    return TypeRegistry(classes).extending(schemas)
