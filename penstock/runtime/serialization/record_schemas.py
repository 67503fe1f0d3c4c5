"""Make the schema of a record class for manifests: its name, kind and fields."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum, Flag
from functools import partial
from typing import Any

from penstock.snapshot.metadata.annotations import text_of
from penstock.snapshot.metadata.schema import FieldSchema, RecordKind, RecordSchema


def name_of(kind: type) -> str:
    """Return the name of a class as recorded in snapshots: `module:qualified.name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def schema_of(kind: Any) -> RecordSchema:
    """Return the schema of an enum, a named tuple, a dataclass or a struct of msgspec.

    In schemas, a struct is a dataclass: both have fields that are known by their names.
    """
    name = name_of(kind)
    if issubclass(kind, Enum):
        # A combination of flags is encoded as its value, so the values are part of the schema.
        members = tuple(
            FieldSchema(name, repr(int(member.value)) if issubclass(kind, Flag) else "")
            for name, member in kind.__members__.items()
        )
        return RecordSchema(name, RecordKind.ENUM, members)
    if issubclass(kind, tuple):
        types = _annotations(kind)
        fields = tuple(FieldSchema(one, text_of(types.get(one, Any))) for one in kind._fields)
        return RecordSchema(name, RecordKind.NAMED_TUPLE, fields)
    if is_struct(kind):
        types, defaults = _annotations(kind), struct_defaults(kind)
        fields = tuple(
            FieldSchema(one, text_of(types.get(one, Any)), one in defaults)
            for one in kind.__struct_fields__
        )
        return RecordSchema(name, RecordKind.DATACLASS, fields)
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


def is_struct(kind: type) -> bool:
    """Return whether a class is a `msgspec.Struct`. Does not import msgspec."""
    return isinstance(getattr(kind, "__struct_fields__", None), tuple)


def struct_defaults(kind: Any) -> dict[str, Callable[[], Any]]:
    """Return a function for each field of a `msgspec.Struct` with a default, which returns it."""
    import msgspec  # the class has imported it already

    names = kind.__struct_fields__
    found = zip(reversed(names), reversed(kind.__struct_defaults__), strict=False)
    return {
        name: default.factory if isinstance(default, _factory_class()) else partial(_same, default)
        for name, default in found
        if default is not msgspec.NODEFAULT
    }


def struct_positions(kind: Any) -> int:
    """Return how many fields of a `msgspec.Struct` can be given by position, in a call of it.

    The signature of the class shows this number only if the types of all fields can be found. So
    the class is called with a wrong keyword: it checks the number of positions first.
    """
    for count in range(len(kind.__struct_fields__), 0, -1):
        try:
            kind(*[None] * count, **{"": None})
        except TypeError as error:
            if "positional" not in str(error):
                return count
    return 0


def _factory_class() -> Any:
    from msgspec import _core

    return _core.Factory


def _same(value: Any) -> Any:
    return value


def _annotations(kind: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases, as they are written."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= inspect.get_annotations(base)
    return found


def is_missing(default: Any) -> bool:
    """Return whether a default or default factory of a dataclass field is `MISSING`."""
    # The type is compared, not the object: a class that was unpickled has another `MISSING` object.
    return isinstance(default, type(dataclasses.MISSING))
