"""What msgpack can't say about one value: its type, and which class of the job it is of.

A value that msgpack would change (a tuple, a set, a big integer, a dataclass …) is *lowered*, from
the outside in, to an array that begins with a tag, and *revived* from the inside out by msgpack's
own list hook. In lowered data every array begins with a tag, lists included, so nothing can be
taken for something else. Reviving neither recurses nor imports; classes come from a `TypeTable`
by index, and are filled without calling their `__init__`.

This module knows single values only; batches and the choice between plain and lowered form are in
`penstock.runtime.codec`. The tags are part of the snapshot format: new ones are added at the end.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property
from operator import attrgetter, itemgetter
from types import MemberDescriptorType, NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.dataflow.errors import JobError, ProtocolError

__all__ = ["ATOMS", "IMMUTABLE", "MAX_DEPTH", "Extensions", "Shape", "TypeTable"]
__all__ += ["UnsupportedTypeError"]

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack carries as they are, but for big integers and strings with surrogates."""

IMMUTABLE = ATOMS | {complex, Decimal, Fraction, datetime, date, time, timedelta, UUID, range}
IMMUTABLE |= {timezone, ZoneInfo}
"""Types whose values can't change, nor hold anything that can."""

MAX_DEPTH = 100
"""How deeply containers may be nested in a value."""

# fmt: off
(
    LIST, TUPLE, SET, FROZENSET, DICT, ORDERED_DICT, COUNTER, DEFAULT_DICT, DEQUE, BYTEARRAY,
    BIG_INT, SURROGATES, COMPLEX, DECIMAL, FRACTION, RANGE, UUID_, DATETIME, DATE, TIME,
    TIMEDELTA, OFFSET, ZONE, NUMPY, OBJECT,
) = range(25)
# fmt: on

# The only factories of a defaultdict that can be named in data.
_FACTORIES: dict[str | None, Any] = {None: None}
_FACTORIES |= {kind.__name__: kind for kind in (bool, int, float, str, bytes)}
_FACTORIES |= {kind.__name__: kind for kind in (list, dict, set, tuple)}


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
                "fields; it was written by another version of the class"
            )
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

    def take(self, value: Any) -> tuple[Any, ...]:
        if self._has_dict:
            self._check_extras(value.__dict__)
        try:
            # By attribute, since a default of a field with init=False is left on the class.
            row: tuple[Any, ...] = self._get_attributes(value)
        except AttributeError as error:
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
        # Widths were compared already, so `zip` need not, which is quicker.
        value: Any = object.__new__(self.kind)
        if self._in_dict:
            value.__dict__.update(zip(self._names, row))  # noqa: B905
        else:
            for name, item in zip(self._names, row):  # noqa: B905
                object.__setattr__(value, name, item)
        return value

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


def _row_getter(getter: Any, names: tuple[str, ...]) -> Callable[[Any], Any]:
    """`getter(*names)`, but with a tuple also for one name or none."""
    if len(names) > 1:
        get: Callable[[Any], Any] = getter(*names)
        return get
    getters = [getter(name) for name in names]
    return lambda holder: tuple([get(holder) for get in getters])


def _hash_tells(kind: Any, shape: Shape) -> bool:
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


def _shape(index: int, kind: Any) -> Shape:
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


class TypeTable:
    """The record classes of a job; in data a class is named by its index here.

    The order is the order of registration and never changes. A restored job must read old data
    with the old order: see `arranged`.

    Arguments:
        classes: dataclasses, NamedTuples and Enums.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        # A name alone stands for a class that older data may refer to and the job has no more.
        self._entries: list[Shape | str] = []
        self._by_class: dict[type, Shape] = {}
        #: Whether each value that can be carried and has a hash is deeply immutable.
        self.hash_tells = True
        for kind in classes:
            self.add(kind)

    def add(self, kind: type) -> None:
        """Add a class, unless it is there.

        Raises `UnsupportedTypeError` if it is of a kind that can't be carried, or if another
        class of the same name is there.
        """
        if kind in self._by_class:
            return
        shape = _shape(len(self._entries), kind)
        if name_of(kind) in self.names():
            raise UnsupportedTypeError(
                f"another class {name_of(kind)} is registered; classes are known by their names, "
                "so give one of the two another name"
            )
        self._entries.append(shape)
        self._by_class[kind] = shape
        self.hash_tells = self.hash_tells and _hash_tells(kind, shape)

    def names(self) -> list[str]:
        """The classes in order, as `module:qualname`."""
        return [e if isinstance(e, str) else name_of(e.kind) for e in self._entries]

    def arranged(self, names: Iterable[str]) -> TypeTable:
        """A table with the order `names` (of an older table), then what is new in this one.

        A name that this table doesn't have keeps its place; only data that uses it can't be read.
        """
        kinds = {name_of(kind): kind for kind in self._by_class}
        return _table_of([*(kinds.pop(name, name) for name in names), *kinds.values()])

    def shape_of(self, kind: type) -> Shape | None:
        """The shape of exactly this class, or None if it isn't registered."""
        return self._by_class.get(kind)

    def shape_at(self, index: int) -> Shape:
        """The shape with this index. Raises `ProtocolError` if there is none."""
        if type(index) is not int or not 0 <= index < len(self._entries):
            raise ProtocolError(f"data refers to record class {index!r}, which the job has not")
        entry = self._entries[index]
        if isinstance(entry, str):
            raise ProtocolError(
                f"data refers to the record class {entry}, which is not registered any more; "
                "register it with env.register_type to read that data"
            )
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        # The shapes hold what can't be pickled, and are made again from the classes.
        entries = [e if isinstance(e, str) else e.kind for e in self._entries]
        return (_table_of, (entries,))


def _table_of(entries: list[type | str]) -> TypeTable:
    table = TypeTable()
    for entry in entries:
        if isinstance(entry, str):
            table._entries.append(entry)
        else:
            table.add(entry)
    return table


class Extensions:
    """Lowers values to what msgpack carries without loss, and revives them.

    Arguments:
        table: the record classes; may grow later.
    """

    def __init__(self, table: TypeTable) -> None:
        self._table = table
        self._lowerers: dict[type, Callable[[Any, int], list[Any]]] = {
            list: lambda value, depth: [LIST, *self._all(value, depth)],
            tuple: lambda value, depth: [TUPLE, *self._all(value, depth)],
            set: lambda value, depth: [SET, *self._all(value, depth)],
            frozenset: lambda value, depth: [FROZENSET, *self._all(value, depth)],
            OrderedDict: lambda value, depth: [ORDERED_DICT, *self._pairs(value, depth)],
            Counter: lambda value, depth: [COUNTER, *self._pairs(value, depth)],
            defaultdict: self._lower_default_dict,
            deque: lambda value, depth: [DEQUE, value.maxlen, *self._all(value, depth)],
        }
        self._revivers: dict[int, Callable[[list[Any]], Any]] = {
            **_REVIVERS,
            OBJECT: lambda items: table.shape_at(items[1]).make_all(len(items) - 2, [items[2:]])[0],
        }

    def lower(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """What to pack for `value`, with containers nested at most `depth` deep.

        Raises `UnsupportedTypeError`, which names the type and what to do about it.
        """
        kind = type(value)
        if kind in ATOMS:
            return _lower_atom(kind, value)
        leaf = _LEAVES.get(kind)
        if leaf is not None:
            return leaf(value)
        if depth == 0:
            raise UnsupportedTypeError(
                f"a value is nested deeper than {MAX_DEPTH} containers (a {name_of(kind)} there), "
                "or it contains itself; keep such data flat, with references by key"
            )
        if kind is dict:
            return self._lower_dict(value, depth - 1)
        lowerer = self._lowerers.get(kind)
        if lowerer is not None:
            return lowerer(value, depth - 1)
        shape = self._table.shape_of(kind)
        if shape is not None:
            return [OBJECT, shape.index, *self._all(shape.take(value), depth - 1)]
        if is_numpy_scalar(kind):
            return _lower_numpy(value)
        raise UnsupportedTypeError(_why_not(value))

    def revive(self, items: list[Any]) -> Any:
        """The value of one lowered array whose items are revived already (msgpack's list hook)."""
        return self._revivers[items[0]](items)

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        lower = self.lower
        return [lower(value, depth) for value in values]

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        # A lowered key is a list in general, and lists can't be keys of a dict to be packed.
        if ATOMS.issuperset(map(type, value)):
            keys = list(value)
            if all(map(_is_native, keys)):
                return dict(zip(keys, self._all(value.values(), depth), strict=True))
        return [DICT, *self._all((item for pair in value.items() for item in pair), depth)]

    def _pairs(self, value: dict[Any, Any], depth: int) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise UnsupportedTypeError(
                f"a {type(value).__name__} has attributes of its own ({sorted(value.__dict__)}), "
                "which can't be carried; use a dataclass that holds both"
            )
        return self._all((item for pair in value.items() for item in pair), depth)

    def _lower_default_dict(self, value: defaultdict[Any, Any], depth: int) -> list[Any]:
        factory: Any = value.default_factory
        name = getattr(factory, "__name__", None)
        if name not in _FACTORIES or _FACTORIES[name] is not factory:
            raise UnsupportedTypeError(
                f"a defaultdict with the factory {factory!r} can't be carried, since code is not "
                "data; use a dict, or one of the factories "
                f"{', '.join(name for name in _FACTORIES if name)}"
            )
        return [DEFAULT_DICT, name, *self._pairs(value, depth)]


def is_numpy_scalar(kind: type) -> bool:
    """Whether a type is that of a numpy scalar; without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.generic)


def _is_native(atom: Any) -> bool:
    return _lower_atom(type(atom), atom) is atom


def _lower_atom(kind: type, value: Any) -> Any:
    if kind is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return [SURROGATES, value.encode("utf-8", "surrogatepass")]
    elif kind is int and not -(2**63) <= value < 2**64:
        return [BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
    return value


def _lower_zone(zone: object) -> Any:
    kind = type(zone)
    if zone is None:
        return None
    if isinstance(zone, timezone):
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [OFFSET, offset.days, offset.seconds, offset.microseconds, *map(_lower_str, name)]
    if isinstance(zone, ZoneInfo) and kind is ZoneInfo and zone.key is not None:
        return [ZONE, zone.key]
    raise UnsupportedTypeError(
        f"the time zone {zone!r} of type {name_of(kind)} can't be carried; use "
        "zoneinfo.ZoneInfo(<name>) or datetime.timezone"
    )


def _lower_str(value: str) -> Any:
    return _lower_atom(str, value)


def _lower_int(value: int) -> Any:
    return _lower_atom(int, value)


def _lower_time(value: time | datetime) -> list[Any]:
    clock = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return [*clock, _lower_zone(value.tzinfo)]


# Numbers, booleans and dates. Not strings: numpy drops their trailing zeros.
_NUMPY_KINDS = frozenset("biufcmM")


def _lower_numpy(value: Any) -> list[Any]:
    if value.dtype.kind not in _NUMPY_KINDS:
        raise UnsupportedTypeError(
            f"a numpy scalar of dtype {value.dtype} can't be carried; use value.item()"
        )
    return [NUMPY, value.dtype.str, value.tobytes()]


def _revive_numpy(items: list[Any]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ProtocolError("data holds a numpy scalar, and the job has not imported numpy here")
    _, dtype, content = items
    if not isinstance(dtype, str) or dtype[1:2] not in _NUMPY_KINDS:
        raise ProtocolError(f"data holds a numpy scalar of dtype {dtype!r}")
    (value,) = numpy.frombuffer(content, dtype=numpy.dtype(dtype))
    return value


_LEAVES: dict[type, Callable[[Any], list[Any]]] = {
    bytearray: lambda v: [BYTEARRAY, bytes(v)],
    complex: lambda v: [COMPLEX, v.real, v.imag],
    Decimal: lambda v: [DECIMAL, str(v)],
    Fraction: lambda v: [FRACTION, _lower_int(v.numerator), _lower_int(v.denominator)],
    range: lambda v: [RANGE, *map(_lower_int, (v.start, v.stop, v.step))],
    UUID: lambda v: [UUID_, v.bytes],
    datetime: lambda v: [DATETIME, v.year, v.month, v.day, *_lower_time(v)],
    date: lambda v: [DATE, v.toordinal()],
    time: lambda v: [TIME, *_lower_time(v)],
    timedelta: lambda v: [TIMEDELTA, v.days, v.seconds, v.microseconds],
    timezone: _lower_zone,
    ZoneInfo: _lower_zone,
}


def _revive_tuple(items: list[Any]) -> tuple[Any, ...]:
    return tuple(items[1:])


def _revive_range(items: list[Any]) -> range:
    return range(*items[1:4])


def _dict(items: list[Any], first: int = 1) -> dict[Any, Any]:
    return dict(zip(items[first::2], items[first + 1 :: 2], strict=True))


def _revive_big_int(items: list[Any]) -> int:
    return int.from_bytes(items[1], "little", signed=True)


def _revive_clock(kind: Any, items: list[Any]) -> Any:
    *parts, fold, zone = items[1:]
    return kind(*parts, tzinfo=zone, fold=fold)


def _revive_offset(items: list[Any]) -> timezone:
    _, days, seconds, microseconds, *name = items
    return timezone(timedelta(days, seconds, microseconds), *name)


_REVIVERS: dict[int, Callable[[list[Any]], Any]] = {
    LIST: lambda items: items[1:],
    TUPLE: _revive_tuple,
    SET: lambda items: set(items[1:]),
    FROZENSET: lambda items: frozenset(items[1:]),
    DICT: _dict,
    ORDERED_DICT: lambda items: OrderedDict(_dict(items)),
    COUNTER: lambda items: Counter(_dict(items)),
    DEFAULT_DICT: lambda items: defaultdict(_FACTORIES[items[1]], _dict(items, 2)),
    DEQUE: lambda items: deque(items[2:], items[1]),
    BYTEARRAY: lambda items: bytearray(memoryview(items[1])),
    BIG_INT: _revive_big_int,
    SURROGATES: lambda items: items[1].decode("utf-8", "surrogatepass"),
    COMPLEX: lambda items: complex(items[1], items[2]),
    DECIMAL: lambda items: Decimal(items[1]),
    FRACTION: lambda items: Fraction(items[1], items[2]),
    RANGE: _revive_range,
    UUID_: lambda items: UUID(bytes=items[1]),
    DATETIME: lambda items: _revive_clock(datetime, items),
    DATE: lambda items: date.fromordinal(items[1]),
    TIME: lambda items: _revive_clock(time, items),
    TIMEDELTA: lambda items: timedelta(*items[1:]),
    OFFSET: _revive_offset,
    ZONE: lambda items: ZoneInfo(items[1]),
    NUMPY: _revive_numpy,
}


def _why_not(value: Any) -> str:
    kind = type(value)
    problem = f"a value of type {name_of(kind)} can't be carried: "
    named = isinstance(value, tuple) and hasattr(kind, "_fields")
    if named or isinstance(value, Enum) or "__dataclass_fields__" in vars(kind):
        return problem + f"register its class with env.register_type({kind.__qualname__})"
    if isinstance(value, memoryview):
        return problem + "it is a view of memory; use bytes(value)"
    bases = [base for base in kind.__mro__[1:] if base in IMMUTABLE or base in _CONTAINERS]
    if bases:
        return problem + f"convert it to {bases[0].__name__}, or put it in a registered dataclass"
    return problem + (
        "make it a dataclass, a NamedTuple or an Enum, and register that with "
        f"env.register_type({kind.__qualname__}) (all types: docs/types.md)"
    )


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict, Counter, deque, bytearray})
