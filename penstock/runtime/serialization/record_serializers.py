"""Serializers turn instances of record classes into rows, and back.

The row of a dataclass instance holds its fields, the row of a named tuple its items, and the row of
an enum member its name. Serializers make instances without calling `__init__`. They import no class
by a name found in data: `penstock.runtime.serialization.type_registry` maps an index in the data to
a class.

`penstock.runtime.serialization.class_serializers` has the serializers of the three kinds of
classes.
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
from penstock.snapshot.metadata.schema import RecordSchema, former_names


class UnsupportedTypeError(JobError):
    """A value is of a type that can be neither sent between tasks nor kept in state.

    Examples:
        >>> issubclass(UnsupportedTypeError, JobError)
        True
    """


class RecordSerializer(ABC):
    """Turns the instances of one record class into rows of values, and back.

    Arguments:
        index: the index of the class in its registry.
        kind: the class.
        width: the number of values in a row.
        frozen: whether an instance is deeply immutable if all values of its row are.
    """

    def __init__(self, index: int, kind: type, width: int, frozen: bool) -> None:
        self.index = index
        self.kind = kind
        self.width = width
        self.frozen = frozen
        #: Whether at least one instance was encoded. If so, snapshots may refer to the class.
        self.written = False

    @cached_property
    def schema(self) -> RecordSchema:
        """Return the schema of the class for manifests."""
        return schema_of(self.kind)

    def can_read(self, former: RecordSchema) -> bool:
        """Return whether the serializer can read rows of a former version of the class."""
        return former.field_names in (None, self.schema.field_names)

    def mark_written(self) -> None:
        """Record that an instance was encoded."""
        self.written = True

    def default(self, name: str) -> Any:
        """Return the default value of a field.

        Raises `ProtocolError` if the field has no default.
        """
        raise ProtocolError(f"field {name!r} of {name_of(self.kind)} has no default")

    def hash_implies_immutable(self) -> bool:
        """Return whether every hashable instance is deeply immutable.

        The result is False if the class has `eq=False`, if its hash leaves a field out, or if the
        class defines `__hash__` itself.
        """
        kind: Any = self.kind
        method = kind.__hash__
        if method is None or method is tuple.__hash__ or issubclass(kind, Enum):
            return True
        code = getattr(method, "__code__", None)
        # `dataclass` compiles the `__hash__` that it generates under this file name.
        if not self.frozen or code is None or code.co_filename != "<string>":
            return False
        if not dataclasses.is_dataclass(kind):
            return False
        fields = dataclasses.fields(kind)
        return all(field.compare if field.hash is None else field.hash for field in fields)

    @abstractmethod
    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Return the row of an instance.

        Raises `UnsupportedTypeError` if the instance has attributes that are not in its row, or if
        one of its fields is not set.
        """

    def to_rows(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        """Return the rows of many instances; see `to_row`."""
        return list(map(self.to_row, values))

    @abstractmethod
    def from_row(self, row: Sequence[Any]) -> Any:
        """Make an instance from a row. The caller has checked the width of the row."""

    def from_rows(self, width: int, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Make an instance from each row.

        Arguments:
            width: the number of values in each row.
            rows: the rows.

        Raises:
            ProtocolError: if `width` is not the number of fields of the class.
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
        """Return the error for an instance that cannot be encoded.

        Arguments:
            why: the reason, for the message of the error.
        """
        return UnsupportedTypeError(f"a value of {name_of(self.kind)} can't be carried: {why}")


class FormerSerializer(RecordSerializer):
    """Reads rows that were written with a former version of a class.

    Values of removed fields are ignored, and new fields get their defaults. A renamed field is
    found by its aliases.

    Arguments:
        index: the index of the former version in its registry.
        former: the schema of the former version.
        current: the serializer of the present version of the class.
    """

    def __init__(self, index: int, former: RecordSchema, current: RecordSerializer) -> None:
        names = former.field_names or ()
        super().__init__(index, current.kind, len(names), current.frozen)
        self._former = former
        self._current = current
        places = {name: place for place, name in enumerate(names)}
        before = former_names(names, current.schema.fields or ())
        self._places = [
            (name, places.get(before.get(name, name))) for name in current.schema.field_names or ()
        ]

    @cached_property
    def schema(self) -> RecordSchema:
        """Return the schema of the former version."""
        return self._former

    def to_row(self, value: Any) -> tuple[Any, ...]:
        """Raise `ProtocolError`: a former version can only be read."""
        raise ProtocolError(f"{value!r} was given to a former version of its class")

    def from_row(self, row: Sequence[Any]) -> Any:
        """Make an instance of the present class from a row of the former version."""
        default = self._current.default
        return self._current.from_row(
            [default(name) if place is None else row[place] for name, place in self._places]
        )
