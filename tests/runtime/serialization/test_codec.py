"""The codec: what comes back is equal in value and type, or was refused.

`same` compares what `==` doesn't see: types, signs of zero, NaN, folds, zones, order of keys.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import gc
import math
import pickle
import struct
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow.errors import JobError, ProtocolError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.immutability import Copier
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.schema import RecordSchema
from tests.sizes import sized

PARIS = ZoneInfo("Europe/Paris")
T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796 - an alias, on purpose


class Level(enum.IntEnum):
    LOW = 1


class Mood(enum.StrEnum):
    GLAD = "glad"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    X = 1
    Y = 2


@dataclasses.dataclass
class Plain:
    word: Any
    count: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    word: Any
    count: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    word: Any


@dataclasses.dataclass
class Child(Plain):
    extra: Any = None
    derived: Any = dataclasses.field(init=False, default=7)


@dataclasses.dataclass(frozen=True)
class Mixed(Slotted):
    more: Any = 1

    def __post_init__(self) -> None:
        raise AssertionError("decoding must not run code of the class")


@dataclasses.dataclass
class Nothing:
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


class Loose(Pair):
    pass


Single = namedtuple("Single", "only")

CLASSES: list[Any] = [Colour, Level, Mood, Access, Mode, Plain, Frozen, Slotted, Child, Nothing]
CLASSES += [Pair, Single, Loose]


@pytest.fixture
def codec() -> Codec:
    return Codec(TypeRegistry(CLASSES))


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, enum.Enum):
        return a is b
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, (datetime, time)):
        plain = a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.fold == b.fold
        return plain and same(a.tzinfo, b.tzinfo)
    if isinstance(a, timezone):
        return repr(a) == repr(b)
    if isinstance(a, ZoneInfo):
        return a is b
    if isinstance(a, dict):
        if getattr(a, "default_factory", None) is not getattr(b, "default_factory", None):
            return False
        return same(list(a.keys()), list(b.keys())) and same(list(a.values()), list(b.values()))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, (list, tuple, deque)):
        bounds = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return bounds and len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b)


zones = st.sampled_from(
    [None, UTC, PARIS, timezone(timedelta(minutes=-90)), timezone(timedelta(hours=1), "é\ud800")]
)
hashable_atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**4000, -0.0])
    | st.floats()
    | st.text(st.characters(), max_size=3)
    | st.sampled_from(["\ud800", "a\udfff", "glad"])
    | st.binary(max_size=3)
    | st.complex_numbers()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.fractions()
    | st.datetimes(timezones=zones)
    | st.times()
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([range(0), range(2**70), range(9, 1, -2), UTC, PARIS])
    | st.sampled_from([*Colour, *Level, *Mood, *Access, *Mode, Access(0), Mode(3), Access(3)])
)
atoms = hashable_atoms | st.binary(max_size=3).map(bytearray) | st.just(Decimal("-sNaN12"))
keys = st.recursive(
    hashable_atoms,
    lambda inner: (
        st.lists(inner, max_size=2).map(tuple)
        | st.frozensets(inner, max_size=2)
        | st.builds(Pair, inner, inner)
        | st.builds(Frozen, inner, inner)
        | st.builds(Slotted, inner)
    ),
    max_leaves=3,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    dicts = st.dictionaries(keys, inner, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | lists.map(deque)
        | st.builds(deque, lists, st.integers(3, 5))
        | st.sets(keys, max_size=3)
        | dicts
        | st.dictionaries(st.sampled_from(["a", "b"]), inner)
        | dicts.map(OrderedDict)
        | dicts.map(Counter)
        | st.builds(defaultdict, st.sampled_from([None, int, list, dict]), dicts)
        | st.builds(Plain, inner, inner)
        | st.builds(Frozen, inner, inner)
        | st.builds(Child, inner, inner, inner)
        | st.builds(Slotted, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Single, inner)
        | st.just(Nothing())
    )


values = st.recursive(atoms | keys, containers, max_leaves=8)
uniform_batches = st.one_of(
    st.lists(st.tuples(atoms, values), max_size=5),
    st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=5),
    st.lists(st.builds(Plain, atoms, values), max_size=5),
    st.lists(st.builds(Pair, st.integers(), st.tuples(atoms, atoms)), max_size=5),
    st.lists(st.fixed_dictionaries({"a": values, "b": st.integers()}), max_size=5),
    st.lists(st.sampled_from([*Colour, *Access]), max_size=5),
    st.lists(st.lists(st.integers(), max_size=3), max_size=5),
    st.lists(hashable_atoms, max_size=5),
)


@settings(max_examples=sized(300, 3000), deadline=None)
@given(values)
def test_a_value_comes_back_equal_in_value_and_type(value: Any) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    assert same(codec.decode_value(codec.encode_value(value)), value)


@settings(max_examples=sized(200, 2000), deadline=None)
@given(st.lists(values, max_size=4) | uniform_batches)
def test_a_batch_comes_back_equal_in_value_and_type(batch: list[Any]) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    data = codec.encode_batch(batch)
    assert same(codec.decode_batch(data), batch)
    assert same(codec.decode_batch(memoryview(data)), batch)


@settings(max_examples=sized(100, 1000), deadline=None)
@given(uniform_batches)
def test_batches_by_column_and_by_row_hold_the_same(batch: list[Any]) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    by_row = codec.decode_value(codec.encode_value(batch))
    assert same(codec.decode_batch(codec.encode_batch(batch)), by_row)


@settings(max_examples=sized(100, 1000), deadline=None)
@given(st.lists(values, max_size=4) | uniform_batches)
def test_many_values_are_decoded_as_each_is(batch: list[Any]) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    encoded = codec.encode_values(batch)
    values = codec.decode_values(encoded)
    assert list(map(repr, values)) == [repr(codec.decode_value(data)) for data in encoded]


@settings(max_examples=sized(100, 1000), deadline=None)
@given(st.lists(values, max_size=4) | uniform_batches)
def test_many_values_are_encoded_as_each_is(batch: list[Any]) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    assert codec.encode_values(batch) == [codec.encode_value(value) for value in batch]


TRAPS: list[Any] = [
    *([], {}, (), "", b"", 0, None, [()], [[]], ((),), {"": ()}),
    *(bytearray(b"a"), [bytearray(b"a")], ("a", bytearray(b"b")), {"a": bytearray(b"c")}),
    *(((1,),), ([1, (2,)],), [(1, 2)], {"a": (1, [2])}),
    *(True, (True, 1, 1.0), [1, True], {1: "a", "1": "b", None: 0, 1.5: 2, b"x": 3}),
    *({(1, 2): "tuple key"}, {(1, (2, "x")): {3}}, {"b": 1, "a": 2}, {10**30: 1}, {"\ud800": 1}),
    *(Level.LOW, (Level.LOW, 1), {Level.LOW: 1}, Mood.GLAD, Colour.CRIMSON, Access(3), Mode(0)),
    *(2**63, 2**64, -(2**63) - 1, ("a", 2**70), [10**400], 10**4000),
    *("\ud800", ("\udfff", 1), ["é\ud800"], {"a": "\ud800"}),
    *(math.nan, (math.nan, -0.0), -0.0, math.inf, complex(-0.0, math.nan)),
    *({1, "a"}, frozenset({(1, 2)}), {frozenset({1})}, set(), frozenset()),
    *(Counter("hello"), Counter({"a": -1.5}), OrderedDict(b=1, a=2), [OrderedDict()]),
    *(defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), deque([1], 3), deque()),
    *(Decimal("NaN"), Decimal("sNaN1"), Decimal("-0.00"), Decimal("-Infinity"), Decimal("1E+9")),
    *(Decimal("1.10"), Fraction(1, 3), Fraction(2**70, 3), range(3, 2**70, 2)),
    *(datetime(2024, 10, 27, 2, 30, fold=1), datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=1)),
    *(datetime.max.replace(tzinfo=UTC), datetime(1, 1, 1, tzinfo=timezone(timedelta(1, -1)))),
    *(time(1, tzinfo=timezone(timedelta(hours=1), "CET")), time(1, fold=1), time.max),
    *(date.min, timedelta.min, timedelta.max, timedelta(microseconds=-1), uuid.UUID(int=5)),
    *(Plain("a", [1]), Frozen("a", (1,)), Slotted([1]), Child(1, 2, 3), Nothing(), Pair(1, [2])),
    *(Single(Single(None)), Plain(Plain(1), Pair(Plain(2), Colour.RED)), Loose(1, 2)),
    *([Plain(1), Frozen(1)], [Pair(1, 2), (1, 2)], {Pair(1, 2): Frozen(1)}),
]


# The order of a set's elements differs between processes, and so would a name made from `repr`.
@pytest.mark.parametrize(
    "value", TRAPS, ids=[f"{type(trap).__name__}-{i}" for i, trap in enumerate(TRAPS)]
)
def test_a_trap_comes_back_alone_in_a_batch_and_beside_others(codec: Codec, value: Any) -> None:
    assert same(codec.decode_value(codec.encode_value(value)), value)
    batches = [[value], [value] * 3, [(value, 1)] * 2, [("a", value), ("b", "c")], [value, 1, "a"]]
    batches += [[Plain(value, 1)] * 2, [Pair(1, value)], [{"k": value}] * 2, [((value,),)] * 2]
    for batch in batches:
        assert same(codec.decode_batch(codec.encode_batch(batch)), batch)


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [(), ()],
        [(1,), (1, 2)],
        [(1, 2), [1, 2]],
        [{}, {}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{1: "a"}, {True: "a"}],
        [{"a": 1}, {Mood.GLAD: 1}],
        [Nothing(), Nothing()],
        [[1], [], [2, "x"]],
        [(1, ((2, ((3, ((4, (5, 6)),)),)),))] * 2,
        [("a", 2**70), ("\ud800", 1), ("b", 2)],
    ],
    ids=repr,
)
def test_batches_that_are_hard_to_write_by_column(codec: Codec, batch: list[Any]) -> None:
    assert same(codec.decode_batch(codec.encode_batch(batch)), batch)


class Unregistered(NamedTuple):
    a: int


@dataclasses.dataclass
class AlsoUnregistered:
    a: int


class Foreign:
    pass


class OwnList(list[Any]):
    pass


class OwnInt(int):
    pass


class OwnZone(tzinfo):
    pass


class Adjective(enum.Enum):
    GOOD = 1


def with_attribute(value: Any) -> Any:
    value.__dict__["remark"] = "lost?"
    return value


def without(value: Any, name: str) -> Any:
    object.__delattr__(value, name)
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Unregistered(1), r"env\.register_type\(Unregistered\)"),
        (AlsoUnregistered(1), r"env\.register_type\(AlsoUnregistered\)"),
        (Adjective.GOOD, r"env\.register_type\(Adjective\)"),
        (Foreign(), "test_codec:Foreign.*make it a dataclass"),
        (OwnList([1]), "convert it to list"),
        (OwnInt(1), "convert it to int"),
        (memoryview(b"a"), r"bytes\(value\)"),
        (lambda: None, "function"),
        (int, "builtins:type"),
        (defaultdict(lambda: 0), "code is not data"),
        (datetime(2024, 1, 1, tzinfo=OwnZone()), "zoneinfo"),
        (time(1, tzinfo=OwnZone()), "zoneinfo"),
        (with_attribute(Plain(1)), r"besides its fields: \['remark'\]"),
        (with_attribute(Frozen(1)), r"besides its fields: \['remark'\]"),
        (with_attribute(Loose(1, 2)), r"besides its fields: \['remark'\]"),
        (with_attribute(without(Plain(1), "count")), r"besides its fields: \['remark'\]"),
        (with_attribute(Counter("a")), r"attributes of its own \(\['remark'\]\)"),
        (without(Plain(1), "word"), "field is not set.*word"),
        (without(Slotted(1), "word"), "field is not set.*word"),
        (tuple.__new__(Pair, (1,)), "1 items for 2 fields"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_come_back_the_same_is_refused(codec: Codec, value: Any, says: str) -> None:
    for wrapped in (value, [value], ("a", value), {"a": [value]}, Plain(value)):
        with pytest.raises(UnsupportedTypeError, match=says) as refused:
            codec.encode_value(wrapped)
        assert isinstance(refused.value, JobError)
    for batch in ([value, value], [("a", value)], [("a", 1), ("b", value)], [Plain(value)]):
        with pytest.raises(UnsupportedTypeError, match=says):
            codec.encode_batch(batch)


def test_a_value_that_contains_itself_is_refused(codec: Codec) -> None:
    loop: list[Any] = []
    loop.append(loop)
    node = Plain(1)
    node.count = (node,)
    for value in (loop, node, {"a": loop}):
        with pytest.raises(UnsupportedTypeError, match="contains itself"):
            codec.encode_value(value)
        with pytest.raises(UnsupportedTypeError, match="contains itself"):
            codec.encode_batch([value, value])
        assert not codec.is_immutable(value)


def test_values_may_be_nested_a_hundred_deep(codec: Codec) -> None:
    value: Any = ()
    for _ in range(99):
        value = (value,)
    assert codec.decode_value(codec.encode_value(value)) == value
    assert codec.is_immutable(value)
    with pytest.raises(UnsupportedTypeError, match="deeper than 100"):
        codec.encode_value((value,))


def test_a_cached_property_is_not_part_of_a_record() -> None:
    @dataclasses.dataclass
    class Caching(Generic[T]):
        a: T

        @functools.cached_property
        def twice(self) -> Any:
            return (self.a, self.a)

    codec = Codec(TypeRegistry([Caching]))
    record = Caching[int](1)
    assert record.twice == (1, 1)
    (copied,) = codec.decode_batch(codec.encode_batch([record]))
    assert copied == record
    assert vars(copied) == {"a": 1}
    assert copied.twice == (1, 1)


def test_a_dataclass_is_filled_without_running_its_code() -> None:
    codec = Codec(TypeRegistry([Mixed]))
    record = object.__new__(Mixed)
    object.__setattr__(record, "word", "slot")
    object.__setattr__(record, "more", "dict")
    copied = codec.decode_value(codec.encode_value(record))
    assert (type(copied), copied.word, copied.more) == (Mixed, "slot", "dict")


class Halved:
    """A field with a descriptor: what is given is not what is kept, and it is kept elsewhere."""

    def __get__(self, record: Any, owner: Any) -> Any:
        return 0 if record is None else vars(record)["a"] // 2

    def __set__(self, record: Any, value: int) -> None:
        vars(record)["a"] = value * 2


@dataclasses.dataclass
class WithDescriptor:
    a: Any = Halved()
    b: int = 0


@dataclasses.dataclass
class Careful:
    a: int

    def __setattr__(self, name: str, value: Any) -> None:
        assert value >= 0
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Empty:
    pass


@dataclasses.dataclass
class Größe:
    größe: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int
    b: str


@pytest.mark.parametrize(
    "record",
    [WithDescriptor(3, 4), Careful(1), Empty(), Größe(7), FrozenSlots(1, "b")],
    ids=lambda record: type(record).__name__,
)
def test_dataclasses_of_all_kinds_come_back(record: Any) -> None:
    codec = Codec(TypeRegistry([type(record)]))
    if type(record) is Careful:
        object.__setattr__(record, "a", -1)  # it is not asked when the record is made again
    for copied in (
        *codec.decode_batch(codec.encode_batch([record, record])),
        codec.decode_value(codec.encode_value(record)),
    ):
        assert copied == record and repr(copied) == repr(record)
        assert getattr(copied, "__dict__", None) == getattr(record, "__dict__", None)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_fields_of_a_dataclass_are_in_the_object_itself(frozen: bool) -> None:
    kind = dataclasses.make_dataclass("Kind", ["a", "b"], frozen=frozen)
    codec = Codec(TypeRegistry([kind]))
    for copied in codec.decode_batch(codec.encode_batch([kind(1, "b")])):
        # Else reading one takes twice as long; see `penstock.runtime.control.code_pickler`.
        assert not any(type(part) is dict for part in gc.get_referents(copied))
        assert copied == kind(1, "b")


def test_a_numpy_scalar_is_carried_where_the_job_has_imported_numpy(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dtype:
        def __init__(self, text: str) -> None:
            self.str, self.kind = text, text[1]

    class Scalar:
        pass

    class Double(float, Scalar):
        dtype = Dtype("<f8")

        def tobytes(self) -> bytes:
            return struct.pack("<d", self)

    stand_in = types.SimpleNamespace(
        generic=Scalar,
        dtype=Dtype,
        frombuffer=lambda data, dtype: [Double(struct.unpack("<d", data)[0])],
    )
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    with pytest.raises(UnsupportedTypeError, match="convert it to float"):
        codec.encode_value(Double(0.5))
    monkeypatch.setitem(sys.modules, "numpy", stand_in)
    data = codec.encode_batch([("a", Double(0.5)), ("b", 0.5)])
    back = codec.decode_batch(data)
    assert [type(number) for _, number in back] == [Double, float]
    assert codec.is_immutable(Double(1))
    for unsafe in ("|O", "<U1", "|V8"):
        Double.dtype = Dtype(unsafe)
        with pytest.raises(UnsupportedTypeError, match="item"):
            codec.encode_value(Double(0.5))
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(ProtocolError, match="not imported numpy"):
        codec.decode_batch(data)


def test_bytes_are_what_they_always_were(codec: Codec) -> None:
    # Snapshots hold these bytes, so a change here makes old snapshots unreadable.
    values = {
        b"\x01": 1,
        b"\xc1\x92\xa1a\x01": ("a", 1),
        b"\x91\xa1a": ["a"],
        b"\xc1\xc1\x93\x01\x01\x92\x00\x02": (1, [2]),
        b"\xc1\xc1\x94\x18\x0a\x01\x92\x0d\xa12": Pair(1, Decimal(2)),
    }
    assert {codec.encode_value(value): value for value in values.values()} == values
    batches = {
        b"\x92\x00\x92\x01\x02": [1, 2],
        b"\x93\x02\x92\xa1a\xa1b\x92\x01\x02": [("a", 1), ("b", 2)],
        b"\x93\x03\x91\xa1k\x91\x01": [{"k": 1}],
        b"\x94\x04\x0a\x91\x01\x91\x02": [Pair(1, 2)],
        b"\x92\x01\xc4\x08\xc1\xc1\x93\x00\x01\x92\x01\x02": [1, (2,)],
    }
    assert {codec.encode_batch(batch): batch for batch in batches.values()} == batches


# The table


def test_the_table_names_classes_in_the_order_they_were_added() -> None:
    table = TypeRegistry([Pair, Colour])
    table.add(Plain)
    table.add(Pair)
    assert table.names() == [f"{__name__}:{name}" for name in ("Pair", "Colour", "Plain")]
    assert len(table) == 3


def test_a_class_added_later_is_known_to_the_codec() -> None:
    table = TypeRegistry()
    codec = Codec(table)
    with pytest.raises(UnsupportedTypeError):
        codec.encode_value(Colour.RED)
    table.add(Colour)
    assert codec.decode_value(codec.encode_value(Colour.RED)) is Colour.RED


def test_a_restored_job_reads_old_data_whatever_order_it_registers_in() -> None:
    old = TypeRegistry([Pair, Colour, Plain])
    data = Codec(old).encode_batch([Plain(1), Plain(2)])
    gone = Codec(old).encode_value(Colour.RED)
    new = TypeRegistry([Frozen, Plain, Pair]).extending(old.schemas())
    assert new.names() == [*old.names(), f"{__name__}:Frozen"]
    codec = Codec(new)
    assert codec.decode_batch(data) == [Plain(1), Plain(2)]
    with pytest.raises(ProtocolError, match=r"Colour.*not registered any more"):
        codec.decode_value(gone)


def test_the_table_travels_with_the_job() -> None:
    table = TypeRegistry([Frozen, Pair]).extending(
        [RecordSchema(f"{__name__}:Pair"), RecordSchema("gone:Gone")]
    )
    copied = pickle.loads(pickle.dumps(table))
    assert copied.names() == table.names()
    record = Frozen("a", Pair(1, 2))
    assert Codec(copied).decode_value(Codec(table).encode_value(record)) == record


def test_only_classes_of_records_can_be_registered() -> None:
    @dataclasses.dataclass
    class Failure(Exception):
        code: int

    class Slots:
        __slots__ = ("hidden",)

    @dataclasses.dataclass
    class Hiding(Slots):
        a: int

    class PlainChild(Plain):
        pass

    for kind in (int, Foreign, OwnList, Failure, Hiding, PlainChild, "Plain"):
        with pytest.raises(UnsupportedTypeError):
            TypeRegistry([kind])  # type: ignore[list-item]


def test_two_classes_of_one_name_are_refused() -> None:
    twin = dataclasses.make_dataclass("Plain", ["a"], namespace={"__module__": __name__})
    with pytest.raises(UnsupportedTypeError, match="another name"):
        TypeRegistry([Plain, twin])


def test_data_of_another_version_of_a_class_is_an_error() -> None:
    data = Codec(TypeRegistry([Plain])).encode_batch([Plain(1)])
    value = Codec(TypeRegistry([Plain])).encode_value(Plain(1))
    other = Codec(TypeRegistry([Child]))
    for decode in (lambda: other.decode_batch(data), lambda: other.decode_value(value)):
        with pytest.raises(ProtocolError, match="another version"):
            decode()


# Copies


@pytest.mark.parametrize(
    "batch",
    [
        [],
        ["a", "b"],
        [("a", 1), ("b", 2)],
        [1, "a", None, (1, (2, frozenset({3})))],
        [Frozen("a", 1), Frozen("b", (1, 2))],
        [Pair("a", Colour.RED), Pair(1, Access(3))],
        [(), (1,), ((),)],
        [Slotted(Decimal(1)), datetime(2024, 1, 1, tzinfo=UTC)],
        [Pair("a", 1), Frozen("b", 2), Pair("c", Colour.RED), None, Frozen("d", 3)],
    ],
    ids=repr,
)
def test_immutable_batches_are_not_copied(codec: Codec, batch: list[Any]) -> None:
    assert codec.copy_mutable(batch) is batch
    assert all(codec.is_immutable(record) for record in batch)


@pytest.mark.parametrize(
    "batch",
    [
        [[1], [2]],
        [("a", [1]), ("b", [2])],
        ["a", {"k": [1]}, ("x", 1)],
        [Plain("a", [1]), Plain("b")],
        [Frozen("a", {"k": {1}})],
        [Pair("a", bytearray(b"x"))],
        [Loose(1, 2)],
        [(1, (2, (3, [4])))],
        [Counter("ab"), deque([1])],
        [Pair("a", 1), Frozen("b", 2), Pair("c", [3]), None],
    ],
    ids=repr,
)
def test_a_change_to_a_mutable_record_does_not_reach_its_copy(
    codec: Codec, batch: list[Any]
) -> None:
    before = copy.deepcopy(batch)
    copied = codec.copy_mutable(batch)
    assert copied is not batch
    for record in batch:
        if not codec.is_immutable(record):
            _spoil(record)
    assert same(copied, before)


def _spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, (Plain, Frozen, Loose)):
        for item in list(vars(value).values()):
            _spoil(item)
        vars(value)["word"] = "spoilt"
    elif isinstance(value, tuple):
        for item in value:
            _spoil(item)
    elif isinstance(value, dict):
        for item in value.values():
            _spoil(item)
        value["spoilt"] = 1
    elif isinstance(value, (list, deque, bytearray)):
        value.append(0)


@settings(max_examples=sized(100, 1000), deadline=None)
@given(st.lists(values, max_size=4) | uniform_batches)
def test_copies_are_equal_and_only_immutable_batches_are_shared(batch: list[Any]) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    copied = codec.copy_mutable(batch)
    assert same(copied, batch)
    assert (copied is batch) == all(codec.is_immutable(record) for record in batch)


def test_a_frozen_record_with_an_attribute_set_behind_its_back_is_not_immutable(
    codec: Codec,
) -> None:
    assert not codec.is_immutable_batch([with_attribute(Frozen(1))])
    assert not codec.is_immutable_batch([Foreign()])


def test_a_batch_of_several_types_is_checked_by_type_and_not_by_record(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    check = Copier._all_immutable

    def counted(self: Copier, values: Any, depth: int) -> bool:
        checks.append(values)
        return check(self, values, depth)

    monkeypatch.setattr(Copier, "_all_immutable", counted)
    assert codec.is_immutable_batch([Pair(1, "a"), Frozen(2), "b"] * 1000)
    assert len(checks) < 20


@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    items: list[int]


@dataclasses.dataclass(frozen=True)
class OwnHash:
    name: str
    items: list[int]

    def __hash__(self) -> int:
        return hash(self.name)


@dataclasses.dataclass(frozen=True)
class PartlyHashed:
    name: str
    items: list[int] = dataclasses.field(hash=False)


@dataclasses.dataclass(unsafe_hash=True)
class HashedAllTheSame:
    name: str


@pytest.mark.parametrize(
    "value",
    [ByIdentity([1]), OwnHash("a", [1]), PartlyHashed("a", [1]), HashedAllTheSame("a")],
    ids=lambda value: type(value).__name__,
)
def test_a_class_whose_hash_says_nothing_is_looked_into(value: Any) -> None:
    table = TypeRegistry([Frozen, Pair, Colour])
    assert table.hash_implies_immutable
    table.add(type(value))
    assert not table.hash_implies_immutable
    codec = Codec(table)
    assert not codec.is_immutable(value)
    assert not codec.is_immutable((1, value))
    assert codec.is_immutable((1, Frozen(1)))
    assert not codec.is_immutable((1, Frozen([1])))


# Damage

samples = st.lists(values, max_size=3) | uniform_batches


@settings(max_examples=sized(250, 2500), deadline=None)
@given(samples, st.data())
def test_damaged_bytes_are_an_error_or_another_value(batch: list[Any], data: st.DataObject) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    for decode, good in (
        (codec.decode_batch, codec.encode_batch(batch)),
        (codec.decode_value, codec.encode_value(batch)),
    ):
        damaged = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        try:
            decode(bytes(damaged))
        except ProtocolError:
            pass


@settings(max_examples=sized(250, 2500), deadline=None)
@given(st.binary(max_size=40), st.sampled_from([b"", b"\xc1", b"\xc1\xc1"]))
def test_random_bytes_are_an_error_or_some_value(noise: bytes, mark: bytes) -> None:
    codec = Codec(TypeRegistry(CLASSES))
    for decode in (codec.decode_batch, codec.decode_value):
        try:
            decode(mark + noise)
        except ProtocolError:
            pass


def test_cut_off_bytes_are_an_error(codec: Codec) -> None:
    batch = [("a", Plain(1, [2])), ("b", Plain(2, {"c": Decimal(1)}))]
    data = codec.encode_batch(batch)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            codec.decode_batch(data[:end])
    value = codec.encode_value(batch)
    for end in range(len(value)):
        with pytest.raises(ProtocolError):
            codec.decode_value(value[:end])


def test_bytes_that_nest_without_bounds_are_an_error(codec: Codec) -> None:
    for data in (b"\x91" * 100_000, b"\xc1" + b"\x91" * 100_000, b"\xc1\xc1" + b"\x92\x00" * 9999):
        with pytest.raises(ProtocolError):
            codec.decode_value(data)
    nested = codec.encode_batch([1])
    for _ in range(10):
        nested = b"\x92\x02\xc5" + len(nested).to_bytes(2, "big") + nested
    with pytest.raises(ProtocolError, match="nested too deeply"):
        codec.decode_batch(nested)


def test_msgpack_extensions_are_not_ours(codec: Codec) -> None:
    with pytest.raises(ProtocolError, match="extension 5"):
        codec.decode_value(b"\xd4\x05\x00")
