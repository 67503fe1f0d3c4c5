"""Define the schemas of record classes, as a manifest records them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class RecordKind(Enum):
    """The kind of a record class: dataclass, named tuple, enum, or unknown."""

    DATACLASS = "dataclass"
    NAMED_TUPLE = "named tuple"
    ENUM = "enum"
    UNKNOWN = "unknown"
    """The kind is not recorded, because the manifest has format 1 or 2."""


@dataclass(frozen=True)
class FieldSchema:
    """A field of a record class, or a member of an enum.

    Arguments:
        name: the name of the field or member.
        type: the normalised text of the field's annotation. For a member of a flag, it is the
            member's value; for a member of another enum, it is empty.
        has_default: whether the field has a default value. Manifests do not record this.
        aliases: the former names of a field. Manifests do not record them.
    """

    name: str
    type: str
    has_default: bool = field(default=False, compare=False)
    aliases: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class RecordSchema:
    """Describes a record class in a manifest.

    Arguments:
        name: the name of the class, as "module:qualname".
        kind: the kind of record class.
        fields: the fields, in the order of a row's values. None if no value of the class was
            written, or if the manifest has format 1 or 2, which do not record fields.
    """

    name: str
    kind: RecordKind = RecordKind.UNKNOWN
    fields: tuple[FieldSchema, ...] | None = None

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The names of the fields in the order of a row's values, or None if they are unknown."""
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
        """Create the schema from a list that `to_wire` returned."""
        name, kind, fields = wire
        known = None if fields is None else tuple(FieldSchema(*one) for one in fields)
        return cls(name, RecordKind(kind), known)


def former_names(before: Collection[str], fields: Iterable[FieldSchema]) -> dict[str, str]:
    """Return the name that each field had in an older version of its class, keyed by its name.

    New fields are left out.

    Arguments:
        before: the names of the fields of the older version.
        fields: the fields of the present version.
    """
    found = {}
    for one in fields:
        name = next((name for name in (one.name, *one.aliases) if name in before), None)
        if name is not None:
            found[one.name] = name
    return found
