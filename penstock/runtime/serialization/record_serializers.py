"""Serializers of record classes: they turn an instance into a row of values, and back.

A dataclass becomes a row of its fields, a named tuple one of its items, an enum member its name.
Instances are made without calling their `__init__`, and no class is imported by a name found in
data: `penstock.runtime.serialization.type_registry` says which class a row belongs to.

The three kinds of classes are in `penstock.runtime.serialization.class_serializers`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from penstock.dataflow.errors import JobError, ProtocolError, Recoverability
from penstock.runtime.serialization.record_schemas import name_of, schema_of
from penstock.snapshot.metadata.schema import RecordSchema

__all__ = ["FormerSerializer", "RecordSerializer", "UnsupportedTypeError"]


class UnsupportedTypeError(JobError):
    """A value is of a type that is not carried between tasks or kept in state."""


class RecordSerializer(ABC):
    """Turns the instances of one record class into rows of values, and back.

    Arguments:
        index: the place of the class in its registry.
        kind: the class.
        width: the number of values in a row.
        frozen: whether an instance is immutable if the values of its row are.
    """

    def __init__(self, index: int, kind: type, width: int, frozen: bool) -> None:
        self.index = index
        self.kind = kind
        self.width = width
        self.frozen = frozen
        #: Whether an instance was encoded, so that snapshots may refer to the class.
        self.written = False

    @cached_property
    def schema(self) -> RecordSchema:
        """Return the fields of the rows, as manifests record them."""
        return schema_of(self.kind)

    def can_read(self, former: RecordSchema) -> bool:
        """Return whether the rows of a former version of the class have the same layout."""
        return former.field_names in (None, self.schema.field_names)

    def mark_written(self) -> None:
        """Record that an instance was encoded."""
        self.written = True

    def default(self, name: str) -> Any:
        """Return the default of a field. Raises `ProtocolError` if it has none."""
        raise ProtocolError(f"field {name!r} of {name_of(self.kind)} has no default")

    def hash_implies_immutable(self) -> bool:
        """Return whether a hashable instance is deeply immutable.

        It is not if the class has `eq=False`, a field that is left out of its hash, or a
        `__hash__` of its own.
        """
        kind: Any = self.kind
        method = kind.__hash__
        if method is None or method is tuple.__hash__ or issubclass(kind, Enum):
            return True
        code = getattr(method, "__code__", None)
        # `dataclass` compiles the `__hash__` that it generates under this file name.
        if not self.frozen or code is None or code.co_filename != "<string>":
            return False
        fields = dataclasses.fields(kind)
        return all(field.compare if field.hash is None else field.hash for field in fields)

    @abstractmethod
    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Return the row of an instance.

        Raises `UnsupportedTypeError` if the instance holds more than its row.
        """

    def to_rows(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        """Return the rows of many instances."""
        return list(map(self.to_row, values))

    @abstractmethod
    def from_row(self, row: Sequence[Any]) -> Any:
        """Return the instance with this row, whose width has been checked."""

    def from_rows(self, width: int, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Return the instances with these rows, each `width` values wide.

        Raises `ProtocolError` if rows of the class have another width.
        """
        if width != self.width:
            raise ProtocolError(
                f"data has {width} values for a {name_of(self.kind)}, which has {self.width} "
                "fields; it was written by another version of the class",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return self._from_rows(rows)

    def _from_rows(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return list(map(self.from_row, rows))

    def unsupported(self, why: str) -> UnsupportedTypeError:
        """Return the error for an instance that can't be carried."""
        return UnsupportedTypeError(f"a value of {name_of(self.kind)} can't be carried: {why}")


class FormerSerializer(RecordSerializer):
    """Reads the rows that a former version of a class wrote; never writes any.

    Arguments:
        index: the place of the former version in its registry.
        former: its fields.
        current: the serializer of the class as it is now. Fields that the class has no more are
            ignored; fields that the former version did not have get their defaults.
    """

    def __init__(self, index: int, former: RecordSchema, current: RecordSerializer) -> None:
        names = former.field_names or ()
        super().__init__(index, current.kind, len(names), current.frozen)
        self._former = former
        self._current = current
        places = {name: place for place, name in enumerate(names)}
        self._places = [(name, places.get(name)) for name in current.schema.field_names or ()]

    @cached_property
    def schema(self) -> RecordSchema:
        """Return the fields of the former version."""
        return self._former

    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Raise `ProtocolError`: instances are written as their class is now."""
        raise ProtocolError(f"{value!r} was given to a former version of its class")

    def from_row(self, row: Sequence[Any]) -> Any:
        """Return an instance of the class as it is now."""
        default = self._current.default
        return self._current.from_row(
            [default(name) if place is None else row[place] for name, place in self._places]
        )
