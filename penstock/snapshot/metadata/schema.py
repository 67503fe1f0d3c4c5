"""The schemas of record classes: their fields, as a manifest records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["FieldSchema", "RecordKind", "RecordSchema"]


class RecordKind(Enum):
    """The kind of a record class."""

    DATACLASS = "dataclass"
    NAMED_TUPLE = "named tuple"
    ENUM = "enum"
    UNKNOWN = "unknown"
    """Not recorded: the manifest has format 1 or 2."""


@dataclass(frozen=True)
class FieldSchema:
    """A field of a record class, or a member of an enum.

    Arguments:
        name: its name.
        type: the normalised text of its annotation; for a member of a flag its value, for one of
            another enum empty.
        has_default: whether an instance can be made without it; not recorded.
    """

    name: str
    type: str
    has_default: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class RecordSchema:
    """A record class as a manifest records it.

    Arguments:
        name: "module:qualname".
        kind: its kind.
        fields: in the order of a row's values; None if no value of the class was written, or if
            the manifest is of format 1 or 2, which have none.
    """

    name: str
    kind: RecordKind = RecordKind.UNKNOWN
    fields: tuple[FieldSchema, ...] | None = None

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The names of the fields in the order of a row's values, if they are known."""
        return None if self.fields is None else tuple(one.name for one in self.fields)

    def __str__(self) -> str:
        if self.fields is None:
            return self.name
        return f"{self.name}({', '.join(one.name for one in self.fields)})"

    def to_wire(self) -> list[Any]:
        """Return the schema as a plain list for msgpack."""
        fields = None if self.fields is None else [[one.name, one.type] for one in self.fields]
        return [self.name, self.kind.value, fields]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> RecordSchema:
        """Return the schema in a list from `to_wire`."""
        name, kind, fields = wire
        known = None if fields is None else tuple(FieldSchema(*one) for one in fields)
        return cls(name, RecordKind(kind), known)
