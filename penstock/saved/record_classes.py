"""Decode the instances of record classes without the classes themselves.

Encoded data names a record class by its index. The manifest has the name and the fields of each
class. No class that the data names is imported, since importing runs code. So a reader gets named
tuples instead of dataclasses and named tuples, and enums that were made from the names of their
members. Classes that the caller passes are used as they are.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from enum import KEEP, Enum, Flag
from functools import partial
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.class_serializers import serializer_for
from penstock.runtime.serialization.record_serializers import RecordSerializer
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.schema import RecordKind, RecordSchema


class TupleRegistry(TypeRegistry):
    """A type registry that decodes the instances of every record class as tuples.

    Arguments:
        types: the record classes of the snapshot. Instances of an older version of a dataclass are
            decoded with the fields of the newest version. A field that they lack is None.
    """

    def __init__(self, types: Sequence[RecordSchema]) -> None:
        super().__init__()
        self._types = types
        self._newest = {schema.name: schema for schema in types if schema.fields is not None}

    def serializer_at(self, index: int) -> RecordSerializer:
        """Return the serializer that decodes instances of a record class as tuples."""
        return _Row(index, tuple, self._places(index))

    def _places(self, index: int) -> list[int | None] | None:
        if index >= len(self._types):
            return None
        schema = self._types[index]
        names = schema.field_names
        newest = self._newest.get(schema.name, schema)
        if schema.kind is not RecordKind.DATACLASS or not names or names == newest.field_names:
            return None
        found = {name: place for place, name in enumerate(names)}
        return [found.get(name) for name in newest.field_names or ()]


class PlainRegistry(TupleRegistry):
    """A type registry that decodes instances of record classes as named tuples and enum members.

    It also encodes them again, as instances of the original class.

    Arguments:
        types: the record classes of the snapshot.
        classes: classes of the job. Their instances are decoded as such.
    """

    def __init__(self, types: Sequence[RecordSchema], classes: Iterable[type] = ()) -> None:
        super().__init__(types)
        self._given = TypeRegistry(classes).extending(types)
        self._serializers: dict[int, RecordSerializer] = {}
        #: The made classes, keyed by the names and fields of the originals.
        self._made: dict[RecordSchema, type] = {}
        self._of_class: dict[type, RecordSerializer] = {}

    def schemas(self) -> list[RecordSchema]:
        """Return the schemas of the snapshot, and then those of classes that it has not."""
        return self._given.schemas()

    def serializer_of(self, kind: type) -> RecordSerializer | None:
        """Return the serializer of a class that was passed, or that this registry has made."""
        return self._given.serializer_of(kind) or self._of_class.get(kind)

    def serializer_at(self, index: int) -> RecordSerializer:
        """Return the serializer with this index."""
        serializer = self._serializers.get(index)
        if serializer is None:
            serializer = self._serializers[index] = self._find(index)
        return serializer

    def _find(self, index: int) -> RecordSerializer:
        try:
            return self._given.serializer_at(index)
        except ProtocolError:
            if type(index) is not int or not 0 <= index < len(self._types):
                raise
        schema = self._types[index]
        newest = self._newest.get(schema.name, schema)
        kind = self._made.get(newest)
        if kind is None:
            kind = self._made[newest] = _class_for(newest)
        if issubclass(kind, Enum):
            serializer = serializer_for(index, kind)
        else:
            serializer = _Row(index, kind, self._places(index))
        if schema is newest and kind is not tuple:
            self._of_class[kind] = serializer
        return serializer


def _class_for(schema: RecordSchema) -> type:
    """Return a class for the instances of a record class that is not there."""
    if schema.fields is None or schema.kind is RecordKind.UNKNOWN:
        return tuple
    module, _, qualified = schema.name.partition(":")
    name = qualified.rpartition(".")[2]
    try:
        if schema.kind is RecordKind.ENUM:
            # The bytes of an enum member as a key contain the name of its class.
            flags = any(one.type for one in schema.fields)
            values = {one.name: int(one.type) if flags else one.name for one in schema.fields}
            flag: Any = Flag
            functional: Any = partial(flag, boundary=KEEP) if flags else Enum
            made = functional(name, values, module=module, qualname=qualified)
            assert isinstance(made, type)
            return made
        names = [one.name for one in schema.fields]
        return namedtuple(name, names, rename=True, module=module)
    except (ValueError, TypeError, AttributeError):
        # A field or member has a name that is not possible here, for example `_`.
        return tuple


class _Row(RecordSerializer):
    """Turns the rows of one record class into tuples.

    Arguments:
        index: the index of the record class in the snapshot's list of record classes.
        kind: the class of the tuples.
        places: for each item of the tuple, its position in the row, or None if the row lacks it.
            If `places` itself is None, the tuple has the items of the row in their order.
    """

    def __init__(self, index: int, kind: type, places: list[int | None] | None) -> None:
        super().__init__(index, kind, 0, frozen=True)
        self._places = places

    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Return the row for a tuple."""
        return tuple(value)

    def from_row(self, row: Sequence[Any]) -> Any:
        """Return the tuple for a row."""
        if self._places is not None:
            row = [None if place is None else row[place] for place in self._places]
        # A damaged row may have another length than the class. It is still a tuple.
        return tuple.__new__(self.kind, row)

    def from_rows(self, width: int, rows: Any) -> list[Any]:
        """Return the tuples for many rows; the argument `width` is ignored."""
        del width
        return list(map(self.from_row, rows))
