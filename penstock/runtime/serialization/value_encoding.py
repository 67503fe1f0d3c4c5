"""What msgpack can't say about one value: its type, and which class of the job it is of.

A value that msgpack would change (a tuple, a set, a big integer, a dataclass …) is *lowered*, from
the outside in, to an array that begins with a tag, and *revived* from the inside out by msgpack's
own list hook. In lowered data every array begins with a tag, lists included, so nothing can be
taken for something else. Reviving neither recurses nor imports; classes come from a `TypeTable`
by index, and are filled without calling their `__init__`.

This module knows single values only; batches and the choice between plain and lowered form are in
`penstock.runtime.serialization.codec`. The tags are part of the snapshot format: new ones are
added at the end.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.dataflow.errors import ProtocolError, Recoverability
from penstock.dataflow.reuse import IMMUTABLE
from penstock.runtime.serialization.record_serializers import (
    FormerShape,
    Shape,
    UnsupportedTypeError,
    hash_tells,
    name_of,
    shape_for,
    why_unsupported,
)
from penstock.snapshot.metadata.schema import RecordSchema

__all__ = ["ATOMS", "IMMUTABLE", "MAX_DEPTH", "Extensions", "Shape", "TypeTable"]
__all__ += ["UnsupportedTypeError"]

ATOMS = frozenset({NoneType, bool, int, float, str, bytes})
"""Types that msgpack carries as they are, but for big integers and strings with surrogates."""

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


class TypeTable:
    """The record classes of a job; in data a class is named by its index here.

    The order is the order of registration and never changes. A restored job must read old data
    with the old order: see `arranged`. A class whose fields have changed has several entries, one
    for each version that older data may refer to.

    Arguments:
        classes: dataclasses, NamedTuples and Enums.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        # A schema alone stands for a class that older data may refer to and the job has no more.
        self._entries: list[Shape | RecordSchema] = []
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
        if isinstance(kind, type) and name_of(kind) in self.names():
            raise UnsupportedTypeError(
                f"another class {name_of(kind)} is registered; classes are known by their names, "
                "so give one of the two another name"
            )
        self._append(kind)

    def _append(self, kind: type) -> None:
        shape = shape_for(len(self._entries), kind)
        self._entries.append(shape)
        self._by_class[kind] = shape
        self.hash_tells = self.hash_tells and hash_tells(kind, shape)

    def names(self) -> list[str]:
        """The classes in order, as `module:qualname`."""
        return [schema.name for schema in self.schemas()]

    def schemas(self) -> list[RecordSchema]:
        """Return the classes in order, with their fields."""
        return [e if isinstance(e, RecordSchema) else e.schema for e in self._entries]

    def written(self) -> list[int]:
        """Return the indices of the classes of which an instance was encoded."""
        shapes = self._by_class.values()
        return [shape.index for shape in shapes if shape.written]

    def arranged(self, former: Iterable[RecordSchema]) -> TypeTable:
        """Return a table with the entries of an older table, then what is new in this one.

        A class that this table does not have keeps its place; only data that uses it cannot be
        read. A class whose fields have changed keeps its place for the former fields, which are
        mapped by name, and gets a new place.
        """
        table = TypeTable()
        kinds = {name_of(kind): kind for kind in self._by_class}
        for schema in former:
            kind = kinds.get(schema.name)
            if kind is None:
                table._entries.append(schema)
            elif kind not in table._by_class and self._by_class[kind].reads(schema):
                table._append(kind)
            else:
                index = len(table._entries)
                table._entries.append(FormerShape(index, schema, self._by_class[kind]))
        for kind in self._by_class:
            if kind not in table._by_class:
                table._append(kind)
        return table

    def shape_of(self, kind: type) -> Shape | None:
        """The shape of exactly this class, or None if it isn't registered."""
        return self._by_class.get(kind)

    def shape_at(self, index: int) -> Shape:
        """The shape with this index. Raises `ProtocolError` if there is none."""
        if type(index) is not int or not 0 <= index < len(self._entries):
            raise ProtocolError(f"data refers to record class {index!r}, which the job has not")
        entry = self._entries[index]
        if isinstance(entry, RecordSchema):
            raise ProtocolError(
                f"data refers to the record class {entry.name}, which is not registered any more; "
                "register it with env.register_type to read that data",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        # The shapes hold what can't be pickled, and are made again from the classes.
        return (_table_of, (list(self._by_class), self.schemas()))


def _table_of(classes: list[type], schemas: list[RecordSchema]) -> TypeTable:
    return TypeTable(classes).arranged(schemas)


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
            shape.written = True
            return [OBJECT, shape.index, *self._all(shape.take(value), depth - 1)]
        if is_numpy_scalar(kind):
            return _lower_numpy(value)
        raise UnsupportedTypeError(_why_not(value, self._table))

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


def _why_not(value: Any, table: TypeTable) -> str:
    kind = type(value)
    problem = f"a value of type {name_of(kind)} can't be carried: "
    named = isinstance(value, tuple) and hasattr(kind, "_fields")
    if named or isinstance(value, Enum) or "__dataclass_fields__" in vars(kind):
        if (reason := why_unsupported(kind)) is not None:
            return problem + reason
        if name_of(kind) in table.names():
            return problem + "another class of that name is registered; rename one of the two"
        return problem + (
            "no function of the program mentions its class, or mentions another one of that "
            f"name, too; register it with env.register_type({kind.__qualname__})"
        )
    if isinstance(value, memoryview):
        return problem + "it is a view of memory; use bytes(value)"
    bases = [base for base in kind.__mro__[1:] if base in IMMUTABLE or base in _CONTAINERS]
    if bases:
        return problem + f"convert it to {bases[0].__name__}, or put it in a registered dataclass"
    return problem + "make it a dataclass, a NamedTuple or an Enum (all types: docs/types.md)"


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict, Counter, deque, bytearray})
