"""Make the schema of a record class for manifests: its name, kind and fields."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum, Flag
from typing import Any

from penstock.snapshot.metadata.annotations import text_of
from penstock.snapshot.metadata.schema import FieldSchema, RecordKind, RecordSchema


def name_of(kind: type) -> str:
    """Return the name of a class as recorded in snapshots: `module:qualified.name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def schema_of(kind: Any) -> RecordSchema:
    """Return the schema of an enum, a named tuple or a dataclass."""
    name = name_of(kind)
    if issubclass(kind, Enum):
        # A combination of flags is encoded as its value, so the values are part of the schema.
        members = tuple(
            FieldSchema(name, repr(int(member.value)) if issubclass(kind, Flag) else "")
            for name, member in kind.__members__.items()
        )
        return RecordSchema(name, RecordKind.ENUM, members)
    if issubclass(kind, tuple):
        types: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            types |= inspect.get_annotations(base)
        fields = tuple(FieldSchema(one, text_of(types.get(one, Any))) for one in kind._fields)
        return RecordSchema(name, RecordKind.NAMED_TUPLE, fields)
    fields = tuple(
        FieldSchema(
            field.name,
            text_of(field.type),
            not (is_missing(field.default) and is_missing(field.default_factory)),
            tuple(field.metadata.get("aliases", ())),
        )
        for field in dataclasses.fields(kind)
    )
    return RecordSchema(name, RecordKind.DATACLASS, fields)


def is_missing(default: Any) -> bool:
    """Return whether a default or default factory of a dataclass field is `MISSING`."""
    # The type is compared, not the object: a class that was unpickled has another `MISSING` object.
    return isinstance(default, type(dataclasses.MISSING))
