"""The serializers of enums, named tuples, dataclasses and structs of msgspec."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, Flag
from functools import cached_property
from itertools import repeat
from operator import attrgetter, itemgetter
from types import MemberDescriptorType
from typing import Any

from penstock.dataflow.arguments.aliases import UsedNames, checked_aliases
from penstock.dataflow.errors import GraphError
from penstock.runtime.serialization.record_schemas import (
    is_missing,
    is_struct,
    struct_defaults,
    struct_positions,
)
from penstock.runtime.serialization.record_serializers import (
    RecordSerializer,
    UnsupportedTypeError,
)
from penstock.snapshot.metadata.schema import RecordSchema

_Fill = Callable[[Iterable[Sequence[Any]]], list[Any]]


class _EnumSerializer(RecordSerializer):
    """Writes an enum member as its name, and a combination of flags as its value."""

    def __init__(self, index: int, kind: type[Enum]) -> None:
        super().__init__(index, kind, 1, frozen=True)
        self._members = kind.__members__

    def to_row(self, value: Any) -> tuple[Any, ...]:
        name = value._name_
        if self._members.get(name) is value:
            return (name,)
        return (int(value._value_),)

    def from_row(self, row: Sequence[Any]) -> Any:
        (name,) = row
        if type(name) is int and issubclass(self.kind, Flag):
            return self.kind(name)
        return self._members[name]

    def can_read(self, former: RecordSchema) -> bool:
        del former
        return True  # a row holds the name of a member, and `from_row` looks the name up


class _NamedTupleSerializer(RecordSerializer):
    def __init__(self, index: int, kind: Any) -> None:
        # If a subclass does not set `__slots__ = ()`, its instances can have further attributes.
        self._bare = not kind.__dictoffset__
        super().__init__(index, kind, len(kind._fields), frozen=self._bare)

    def to_row(self, value: Any) -> tuple[Any, ...]:
        if len(value) != self.width:
            raise self.unsupported(f"it has {len(value)} items for {self.width} fields")
        if not self._bare and value.__dict__:
            raise self.unsupported(
                f"it has attributes besides its fields: {sorted(value.__dict__)}"
            )
        row: tuple[Any, ...] = tuple.__getitem__(value, slice(None))
        return row

    def to_rows(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        if self._bare and list(map(len, values)).count(self.width) == len(values):
            return list(map(tuple.__getitem__, values, repeat(slice(None))))
        return super().to_rows(values)

    def from_row(self, row: Sequence[Any]) -> Any:
        value: Any = tuple.__new__(self.kind, row)
        return value

    def _from_rows(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return list(map(tuple.__new__, repeat(self.kind), rows))


class _DataclassSerializer(RecordSerializer):
    def __init__(self, index: int, kind: Any) -> None:
        self._names = tuple(field.name for field in dataclasses.fields(kind))
        super().__init__(index, kind, len(self._names), kind.__dataclass_params__.frozen)
        self._check_aliases()
        try:
            object.__new__(kind)
        except TypeError as error:
            raise self.unsupported(f"its instances can't be made empty ({error})") from None
        slots = {
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, MemberDescriptorType)
        }
        if hidden := slots.difference(self._names):
            raise self.unsupported(f"it has slots that are not fields: {sorted(hidden)}")
        self._has_dict = bool(kind.__dictoffset__)
        # Whether the instance's `__dict__` holds exactly the fields, which is the usual case.
        self._in_dict = self._has_dict and not slots
        self._get_items = _row_getter(itemgetter, self._names)
        self._get_attributes = _row_getter(attrgetter, self._names)
        described = _is_described(kind, self._names)
        if described and self._in_dict:
            # A descriptor of the user's class may store a value that differs from the value it was
            # given. The row holds the stored value, which is in the instance's `__dict__`.
            self._get_attributes = lambda value: self._get_items(vars(value))
        self._fill = _filler(kind, self._names, described, self._in_dict)

    def to_row(self, value: Any) -> tuple[Any, ...]:
        if self._has_dict:
            self._check_extras(value.__dict__)
        try:
            # Attributes are read instead of the `__dict__`: the default of a field with init=False
            # is an attribute of the class.
            row: tuple[Any, ...] = self._get_attributes(value)
        except (AttributeError, KeyError) as error:
            raise self.unsupported(f"a field is not set ({error})") from None
        return row

    def to_rows(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        if self._in_dict:
            dicts = list(map(vars, values))
            if list(map(len, dicts)).count(self.width) == len(dicts):
                try:
                    return list(map(self._get_items, dicts))
                except KeyError:
                    pass  # a field is missing: `to_row` raises an error with its name
        return super().to_rows(values)

    def from_row(self, row: Sequence[Any]) -> Any:
        (value,) = self._fill((row,))
        return value

    def _from_rows(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return self._fill(rows)

    def default(self, name: str) -> Any:
        field = next(field for field in dataclasses.fields(self.kind) if field.name == name)
        if not is_missing(field.default):
            return field.default
        factory: Any = field.default_factory
        if not is_missing(factory):
            return factory()
        return super().default(name)

    def _check_aliases(self) -> None:
        names = UsedNames("fields")
        try:
            for name in self._names:
                names.add(name, ())
            for field in dataclasses.fields(self.kind):
                aliases = field.metadata.get("aliases", ())
                names.add(field.name, checked_aliases(f"field {field.name!r}", field.name, aliases))
        except (GraphError, TypeError) as error:
            raise self.unsupported(str(error)) from None

    def _check_extras(self, attributes: dict[str, Any]) -> None:
        extras = [
            name
            for name in attributes
            if name not in self._names
            # A cached property can be computed again, and `typing` sets `__orig_class__`.
            and not isinstance(getattr(self.kind, name, None), cached_property)
            and name != "__orig_class__"
        ]
        if extras:
            raise self.unsupported(f"it has attributes besides its fields: {sorted(extras)}")


class _StructSerializer(RecordSerializer):
    """Writes the fields of a `msgspec.Struct`.

    Instances are made by calling the class, because a struct has no instance without fields. This
    runs its `__post_init__`, if it has one.
    """

    def __init__(self, index: int, kind: Any) -> None:
        names: tuple[str, ...] = kind.__struct_fields__
        super().__init__(index, kind, len(names), kind.__struct_config__.frozen)
        self._names = names
        self._get = _row_getter(attrgetter, names)
        self._by_name = struct_positions(kind) < len(names)
        if kind.__dictoffset__:
            raise self.unsupported("its instances can have further attributes (dict=True)")

    def to_row(self, value: Any) -> tuple[Any, ...]:
        try:
            row: tuple[Any, ...] = self._get(value)
        except AttributeError as error:
            raise self.unsupported(f"a field is not set ({error})") from None
        return row

    def from_row(self, row: Sequence[Any]) -> Any:
        if self._by_name:
            return self.kind(**dict(zip(self._names, row, strict=True)))
        return self.kind(*row)

    def default(self, name: str) -> Any:
        make = struct_defaults(self.kind).get(name)
        return super().default(name) if make is None else make()


def _row_getter(getter: Any, names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function that returns the values of all names as a tuple.

    Arguments:
        getter: `itemgetter` or `attrgetter`, which return no tuple for a single name.
        names: the names of the items or attributes.
    """
    if len(names) > 1:
        get: Callable[[Any], Any] = getter(*names)
        return get
    getters = [getter(name) for name in names]
    return lambda holder: tuple([get(holder) for get in getters])


def _is_described(kind: Any, names: tuple[str, ...]) -> bool:
    """Return whether the class has a descriptor with `__set__` for one of the fields."""
    found = [inspect.getattr_static(kind, name, None) for name in names]
    return any(hasattr(f, "__set__") and type(f) is not MemberDescriptorType for f in found)


def _filler(kind: Any, names: tuple[str, ...], described: bool, in_dict: bool) -> _Fill:
    """Return a function that makes an instance from each row.

    The source of the function is generated for the class, as `dataclass` generates `__init__`. The
    function sets the attributes one by one. To fill `__dict__` instead would be slower in CPython
    3.11: making an object would take three times as long, and each access to its attributes twice
    as long (see `penstock.runtime.control.code_pickler`).

    Arguments:
        kind: the class.
        names: the names of the fields, in the order of a row's values.
        described: whether the class has a descriptor for one of the fields.
        in_dict: whether the `__dict__` of an instance holds exactly the fields.
    """
    if described and in_dict:
        put = "value.__dict__[{name!r}] = {item}"
    elif (
        described or kind.__setattr__ is not object.__setattr__ or not all(map(str.isascii, names))
    ):
        put = "put(value, {name!r}, {item})"  # for example for a frozen dataclass
    else:
        put = "value.{name} = {item}"
    items = [f"item{index}" for index in range(len(names))]
    lines = [
        "def fill(rows):",
        "    made = []",
        f"    for [{', '.join(items)}] in rows:",
        "        value = new(kind)",
        *(f"        {put.format(name=n, item=i)}" for n, i in zip(names, items, strict=True)),
        "        made.append(value)",
        "    return made",
    ]
    scope: dict[str, Any] = {"new": object.__new__, "put": object.__setattr__, "kind": kind}
    exec("\n".join(lines), scope)
    fill: _Fill = scope["fill"]
    return fill


def serializer_for(index: int, kind: Any) -> RecordSerializer:
    """Return a new serializer for a record class.

    Raises `UnsupportedTypeError` if the class is not an enum, a named tuple, a dataclass or a
    struct of msgspec, or if its instances cannot be restored from their fields.

    Arguments:
        index: the index of the class in its registry.
        kind: the class.
    """
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return _EnumSerializer(index, kind)
        # `is_dataclass` would also be true for a plain subclass of a dataclass, whose instances may
        # have attributes that are not fields.
        if "__dataclass_fields__" in vars(kind):
            return _DataclassSerializer(index, kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return _NamedTupleSerializer(index, kind)
        if is_struct(kind):
            return _StructSerializer(index, kind)
    raise UnsupportedTypeError(
        f"{kind!r} can't be registered: only dataclasses, named tuples, enums and structs of "
        f"msgspec can"
    )


def why_unsupported(kind: type) -> str | None:
    """Return the reason why a class cannot be a record class, or None if it can."""
    try:
        serializer_for(0, kind)
    except UnsupportedTypeError as error:
        return error.message
    return None
