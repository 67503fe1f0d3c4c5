"""How the instances of a job's record classes become rows of values, and come back.

A dataclass is a row of its fields, a named tuple one of its items, an enum member its name.
Instances are made without calling their `__init__`, and no class is imported by a name found in
data: which class a row is of says the table of `penstock.runtime.serialization.value_encoding`.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, Flag
from functools import cached_property
from operator import attrgetter, itemgetter
from types import MemberDescriptorType
from typing import Any

from penstock.dataflow.errors import JobError, ProtocolError, Recoverability
from penstock.snapshot.metadata.annotations import text_of
from penstock.snapshot.metadata.schema import FieldSchema, RecordKind, RecordSchema

__all__ = ["FormerShape", "Shape", "UnsupportedTypeError", "hash_tells", "name_of", "shape_for"]
__all__ += ["why_unsupported"]

_Fill = Callable[[Iterable[Sequence[Any]]], list[Any]]


class UnsupportedTypeError(JobError):
    """A value is of a type that is not carried between tasks or kept in state."""


def name_of(kind: type) -> str:
    """The name of a class as recorded in snapshots: `module:qualified.name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


class Shape(ABC):
    """How the instances of one class of the job become a row of values, and come back.

    Arguments:
        index: the place of the class in its table.
        kind: the class.
        width: how many values a row has.
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
        """The rows' fields, as manifests record them."""
        return _schema_of(self.kind)

    def reads(self, former: RecordSchema) -> bool:
        """Return whether the rows of a former version of the class are laid out as its own are."""
        return former.field_names in (None, self.schema.field_names)

    def default(self, name: str) -> Any:
        """Return the default of a field. Raises `ProtocolError` if it has none."""
        raise ProtocolError(f"field {name!r} of {name_of(self.kind)} has no default")

    @abstractmethod
    def take(self, value: Any) -> tuple[Any, ...]:
        """The row of an instance. Raises `UnsupportedTypeError` if it holds more than a row."""

    def take_all(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        """The rows of many instances."""
        return list(map(self.take, values))

    @abstractmethod
    def make(self, row: Sequence[Any]) -> Any:
        """The instance with this row, whose width is checked already."""

    def make_all(self, width: int, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """The instances with these rows, all `width` wide. Raises `ProtocolError` if not ours."""
        if width != self.width:
            raise ProtocolError(
                f"data has {width} values for a {name_of(self.kind)}, which has {self.width} "
                "fields; it was written by another version of the class",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return self._make_rows(rows)

    def _make_rows(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return list(map(self.make, rows))

    def refuse(self, why: str) -> UnsupportedTypeError:
        """The error for an instance of this class that can't be carried."""
        return UnsupportedTypeError(f"a value of {name_of(self.kind)} can't be carried: {why}")


class _EnumShape(Shape):
    """Members by name, combinations of flags by value."""

    def __init__(self, index: int, kind: type[Enum]) -> None:
        super().__init__(index, kind, 1, frozen=True)
        self._members = kind.__members__

    def take(self, value: Any) -> tuple[Any, ...]:
        name = value._name_
        if self._members.get(name) is value:
            return (name,)
        return (int(value._value_),)

    def make(self, row: Sequence[Any]) -> Any:
        (name,) = row
        if type(name) is int and issubclass(self.kind, Flag):
            return self.kind(name)
        return self._members[name]

    def reads(self, former: RecordSchema) -> bool:
        del former
        return True  # its rows hold names


class _NamedTupleShape(Shape):
    def __init__(self, index: int, kind: Any) -> None:
        # Without `__slots__ = ()` a subclass can be given attributes.
        self._bare = not kind.__dictoffset__
        super().__init__(index, kind, len(kind._fields), frozen=self._bare)

    def take(self, value: Any) -> tuple[Any, ...]:
        if len(value) != self.width:
            raise self.refuse(f"it has {len(value)} items for {self.width} fields")
        if not self._bare and value.__dict__:
            raise self.refuse(f"it has attributes besides its fields: {sorted(value.__dict__)}")
        row: tuple[Any, ...] = tuple.__getitem__(value, slice(None))
        return row

    def make(self, row: Sequence[Any]) -> Any:
        value: Any = tuple.__new__(self.kind, row)
        return value


class _DataclassShape(Shape):
    def __init__(self, index: int, kind: Any) -> None:
        self._names = tuple(field.name for field in dataclasses.fields(kind))
        super().__init__(index, kind, len(self._names), kind.__dataclass_params__.frozen)
        try:
            object.__new__(kind)
        except TypeError as error:
            raise self.refuse(f"its instances can't be made empty ({error})") from None
        slots = {
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, MemberDescriptorType)
        }
        if hidden := slots.difference(self._names):
            raise self.refuse(f"it has slots that are not fields: {sorted(hidden)}")
        self._has_dict = bool(kind.__dictoffset__)
        # The usual case: the instance's dict holds the fields, all of them and nothing else.
        self._in_dict = self._has_dict and not slots
        self._get_items = _row_getter(itemgetter, self._names)
        self._get_attributes = _row_getter(attrgetter, self._names)
        described = _is_described(kind, self._names)
        if described and self._in_dict:
            # In the dict is what a descriptor of the user's has made of a value: only that is kept.
            self._get_attributes = lambda value: self._get_items(vars(value))
        self._fill = _filler(kind, self._names, described, self._in_dict)

    def take(self, value: Any) -> tuple[Any, ...]:
        if self._has_dict:
            self._check_extras(value.__dict__)
        try:
            # By attribute, since a default of a field with init=False is left on the class.
            row: tuple[Any, ...] = self._get_attributes(value)
        except (AttributeError, KeyError) as error:
            raise self.refuse(f"a field is not set ({error})") from None
        return row

    def take_all(self, values: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        if self._in_dict:
            dicts = list(map(vars, values))
            if list(map(len, dicts)).count(self.width) == len(dicts):
                try:
                    return list(map(self._get_items, dicts))
                except KeyError:
                    pass  # `take` finds out what is missing and what is there instead
        return super().take_all(values)

    def make(self, row: Sequence[Any]) -> Any:
        (value,) = self._fill((row,))
        return value

    def _make_rows(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return self._fill(rows)

    def default(self, name: str) -> Any:
        field = next(field for field in dataclasses.fields(self.kind) if field.name == name)
        if not _is_missing(field.default):
            return field.default
        factory: Any = field.default_factory
        if not _is_missing(factory):
            return factory()
        return super().default(name)

    def _check_extras(self, attributes: dict[str, Any]) -> None:
        extras = [
            name
            for name in attributes
            if name not in self._names
            # Not part of the value: computed again when asked for, and typing's own mark.
            and not isinstance(getattr(self.kind, name, None), cached_property)
            and name != "__orig_class__"
        ]
        if extras:
            raise self.refuse(f"it has attributes besides its fields: {sorted(extras)}")


class FormerShape(Shape):
    """Reads the rows that a former version of a class wrote; never writes any.

    Arguments:
        index: the place of the former version in its table.
        former: its fields.
        current: the shape of the class as it is. Fields that it does not have are left behind,
            and fields that the former version did not have get their defaults.
    """

    def __init__(self, index: int, former: RecordSchema, current: Shape) -> None:
        names = former.field_names or ()
        super().__init__(index, current.kind, len(names), current.frozen)
        self._former = former
        self._current = current
        places = {name: place for place, name in enumerate(names)}
        self._places = [(name, places.get(name)) for name in current.schema.field_names or ()]

    @cached_property
    def schema(self) -> RecordSchema:
        """The fields of the former version."""
        return self._former

    def take(self, value: Any) -> tuple[Any, ...]:
        """Raise `ProtocolError`: instances are written as their class is now."""
        raise ProtocolError(f"{value!r} was given to a former version of its class")

    def make(self, row: Sequence[Any]) -> Any:
        """Return an instance of the class as it is now."""
        default = self._current.default
        return self._current.make(
            [default(name) if place is None else row[place] for name, place in self._places]
        )


def _is_missing(default: Any) -> bool:
    # Not by identity: a class that was pickled has a MISSING of its own.
    return isinstance(default, type(dataclasses.MISSING))


def _schema_of(kind: Any) -> RecordSchema:
    name = name_of(kind)
    if issubclass(kind, Enum):
        # A combination of flags is kept by its value.
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
            not (_is_missing(field.default) and _is_missing(field.default_factory)),
        )
        for field in dataclasses.fields(kind)
    )
    return RecordSchema(name, RecordKind.DATACLASS, fields)


def _row_getter(getter: Any, names: tuple[str, ...]) -> Callable[[Any], Any]:
    """`getter(*names)`, but with a tuple also for one name or none."""
    if len(names) > 1:
        get: Callable[[Any], Any] = getter(*names)
        return get
    getters = [getter(name) for name in names]
    return lambda holder: tuple([get(holder) for get in getters])


def _is_described(kind: Any, names: tuple[str, ...]) -> bool:
    """Whether a descriptor, other than that of a slot, does as it likes with one of the names."""
    found = [inspect.getattr_static(kind, name, None) for name in names]
    return any(hasattr(f, "__set__") and type(f) is not MemberDescriptorType for f in found)


def _filler(kind: Any, names: tuple[str, ...], described: bool, in_dict: bool) -> _Fill:
    """A function that makes an instance of each row, with one attribute per name.

    It is written for the class, as `dataclass` writes `__init__`. Attributes are set singly: an
    object whose `__dict__` is filled instead takes three times as long to make, and twice as long
    to read for as long as it lives (in CPython 3.11; see `penstock.runtime.control.code_pickler`).
    """
    if described and in_dict:
        put = "value.__dict__[{name!r}] = {item}"
    elif (
        described or kind.__setattr__ is not object.__setattr__ or not all(map(str.isascii, names))
    ):
        put = "put(value, {name!r}, {item})"  # it is frozen, say
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


def hash_tells(kind: Any, shape: Shape) -> bool:
    """Whether an instance that has a hash can't change, nor anything in it."""
    method: Any = kind.__hash__
    if method is None or method is tuple.__hash__ or issubclass(kind, Enum):
        return True
    code = getattr(method, "__code__", None)
    # The one that `dataclass` writes has those of the fields in it; another may leave some out.
    if not shape.frozen or code is None or code.co_filename != "<string>":
        return False
    fields = dataclasses.fields(kind)
    return all(field.compare if field.hash is None else field.hash for field in fields)


def shape_for(index: int, kind: Any) -> Shape:
    """The shape of a class. Raises `UnsupportedTypeError` if it can't be carried."""
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return _EnumShape(index, kind)
        # Not `is_dataclass`: a plain subclass of a dataclass has state that its fields don't tell.
        if "__dataclass_fields__" in vars(kind):
            return _DataclassShape(index, kind)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return _NamedTupleShape(index, kind)
    raise UnsupportedTypeError(
        f"{kind!r} can't be registered: only dataclasses, named tuples and enums can"
    )


def why_unsupported(kind: type) -> str | None:
    """Return why a class cannot be a record class; None if it can."""
    try:
        shape_for(0, kind)
    except UnsupportedTypeError as error:
        return error.message
    return None
