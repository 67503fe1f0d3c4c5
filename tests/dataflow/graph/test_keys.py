"""Keys: canonical bytes follow equality, are the same everywhere, and lead to one subtask.

The property test draws pairs that are equal or nearly so on purpose: one number in several
types, one instant in several zones, a named tuple and its tuple.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import subprocess
import sys
import uuid
from collections import Counter, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow.errors import JobError
from penstock.dataflow.graph.key_groups import key_group, key_group_range, subtask_of_key_group
from penstock.dataflow.graph.keys import KeyRefusedError, canonical, plain_keys
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state.cold.rows import RowKeys, original_key
from tests.sizes import sized

PARIS = ZoneInfo("Europe/Paris")
OSLO = ZoneInfo("Europe/Oslo")
MINUTE_EAST = timezone(timedelta(minutes=1))
MICRO_EAST = timezone(timedelta(microseconds=1))


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**70


class Mood(enum.StrEnum):
    GLAD = "glad"


class Letter(str, enum.Enum):  # noqa: UP042 - the older spelling has equality of its own making
    A = "a"


class Colour(enum.Enum):
    RED = 1
    BLUE = "a"


class Shape(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    X = 1


class Pair(NamedTuple):
    left: Any
    right: Any


Other = namedtuple("Other", "a b")

NUMBERS = [0, 1, -1, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 2**70, 10**400]
NUMBERS += [0.5, 0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf")]
SPELLINGS = (lambda x: x, float, Decimal, Fraction, int)


def respelled(number: Any, spell: Any) -> Any:
    try:
        return spell(number)
    except (OverflowError, TypeError, ValueError):
        return number


numbers = st.builds(
    respelled,
    st.sampled_from(NUMBERS)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.fractions()
    | st.decimals(allow_nan=False, places=3)
    | st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("0.1"), Decimal("0E+99999")])
    | st.sampled_from([*Level, Mode.X, Mode(0), Fraction(1, 3), Fraction(2 * 10**400 + 1, 2)]),
    st.sampled_from(SPELLINGS),
)
zones = st.sampled_from([UTC, ZoneInfo("UTC"), PARIS, OSLO, MINUTE_EAST, MICRO_EAST])
# Around both changes of the clocks in Europe, in steps that make hits likely.
moments = st.builds(
    lambda base, quarters, fold: (base + timedelta(minutes=15 * quarters)).replace(fold=fold),
    st.sampled_from([datetime(2024, 3, 31, 1), datetime(2024, 10, 27, 1), datetime(2024, 7, 1)]),
    st.integers(-8, 12),
    st.integers(0, 1),
)
datetimes = (
    moments
    | st.builds(lambda moment, zone: moment.replace(tzinfo=zone), moments, zones)
    | st.builds(lambda moment, a, b: moment.replace(tzinfo=a).astimezone(b), moments, zones, zones)
    | st.sampled_from([datetime.min, datetime.max, datetime.min.replace(tzinfo=MINUTE_EAST)])
)
times = st.builds(
    time,
    st.integers(0, 1),
    st.integers(0, 2),
    microsecond=st.integers(0, 1),
    tzinfo=st.none() | zones,
    fold=st.integers(0, 1),
)
texts = st.sampled_from(["", "a", "glad", "1", "\ud800", "\U00010000", "\ud800\udc00", "é"])
others = st.sampled_from(
    [None, b"", b"a", b"1", date(2024, 7, 1), timedelta(0), timedelta(1), timedelta(hours=24)]
    + [uuid.UUID(int=1), uuid.UUID(int=2), *Mood, *Letter, *Colour, *Shape, *Access]
    + [Access.READ | Access.WRITE, Access(0)]
)
atoms = numbers | datetimes | times | texts | st.text(max_size=2) | others
keys = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.builds(Other, inner, inner)
    ),
    max_leaves=4,
)


@st.composite
def near_pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two keys of one family, bare or at the same place in a tuple."""
    family = draw(st.sampled_from([numbers, datetimes, times, texts | others, keys]))
    a = draw(family)
    b = draw(family | st.just(a))
    wrap = draw(st.sampled_from([lambda x: x, lambda x: (x, 1), lambda x: Pair(x, 1)]))
    wrap_b = draw(st.sampled_from([wrap, lambda x: (x, True)]))
    return wrap(a), wrap_b(b)


@settings(max_examples=sized(600, 6000), deadline=None)
@given(near_pairs())
def test_keys_are_equal_exactly_when_their_bytes_are(pair: tuple[Any, Any]) -> None:
    a, b = pair
    assert (a == b) == (canonical(a) == canonical(b))


@pytest.mark.parametrize(
    "family",
    [
        [1, 1.0, True, Decimal(1), Decimal("1.00"), Fraction(1), Level.LOW, Mode.X],
        [0, 0.0, -0.0, False, Decimal("-0"), Decimal("0E+999999999")],
        [0.5, Decimal("0.50"), Fraction(1, 2)],
        [0.1, Decimal.from_float(0.1), Fraction(0.1)],
        [Decimal("0.1"), Decimal("0.10"), Fraction(1, 10)],
        [2**70, 2.0**70, Decimal(2**70), Level.HIGH],
        [float("inf"), Decimal("Infinity")],
        ["glad", Mood.GLAD],
        ["a", Letter.A],
        [(1, "a"), Pair(1.0, "a"), Other(True, Letter.A)],
        [
            datetime(2024, 7, 1, 12, tzinfo=UTC),
            datetime(2024, 7, 1, 14, tzinfo=PARIS),
            datetime(2024, 7, 1, 14, tzinfo=OSLO),
        ],
        [time(1, 0, tzinfo=UTC), time(1, 1, tzinfo=MINUTE_EAST)],
        [time(1, 0), time(1, 0, tzinfo=PARIS)],
    ],
)
def test_equal_values_of_different_types_are_one_key(family: list[Any]) -> None:
    assert all(value == family[0] for value in family)
    assert len({canonical(value) for value in family}) == 1


def test_unequal_values_that_look_alike_are_different_keys() -> None:
    day = datetime(2024, 7, 1)
    alike = [None, 0.1, Decimal("0.1"), "1", b"1", 1, "i1", (), ("",), ("", ""), (1,), ((1,),)]
    alike += [("a", "bc"), ("ab", "c"), Colour.RED, Shape.RED, Access.READ, 1.5, float("inf")]
    alike += [day, day.date(), day.replace(tzinfo=UTC), timedelta(0), time(0)]
    alike += [time(0, tzinfo=UTC), uuid.UUID(int=1), -1, "\ud800\udc00", "\U00010000"]
    assert len({canonical(value) for value in alike}) == len(alike)


def test_the_two_passes_of_a_repeated_hour_are_one_key_as_in_python() -> None:
    first = datetime(2024, 10, 27, 2, 30, tzinfo=PARIS)
    second = first.replace(fold=1)
    assert first == second
    assert canonical(first) == canonical(second)
    assert first != first.astimezone(UTC)
    assert canonical(first) != canonical(first.astimezone(UTC))


class OwnInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class OwnTuple(Pair):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Pair.__hash__


class OwnEnum(enum.Enum):
    A = 1

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = enum.Enum.__hash__


@dataclasses.dataclass(frozen=True)
class Point:
    x: int


class ZoneOfOnesOwn(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (float("nan"), "NaN"),
        (Decimal("NaN"), "NaN"),
        (Decimal("sNaN"), "NaN"),
        (Decimal("1E+1000000"), "decimal point"),
        (Decimal("1E-1000000"), "decimal point"),
        ([1], "use a tuple"),
        (bytearray(b"a"), "use a tuple or bytes"),
        ({1}, "sorted"),
        (frozenset([1]), "sorted"),
        ({1: 2}, "sorted"),
        (Counter(), "sorted"),
        (OwnInt(1), "convert it to int"),
        (OwnTuple(1, 2), "convert it to tuple"),
        (OwnEnum.A, "equality of its own"),
        (Point(1), "tuple of its fields"),
        (object(), "allowed types"),
        (int, "allowed types"),
        (1j, "allowed types"),
        (("a", [1]), "use a tuple"),
        (datetime(2024, 1, 1, tzinfo=ZoneOfOnesOwn()), "astimezone"),
        (time(1, tzinfo=ZoneOfOnesOwn()), "zoneinfo"),
    ],
    # Without the addresses of objects: two runs must have the same tests.
    ids=lambda value: re.sub(" object at 0x[0-9a-f]+", "", repr(value)),
)
def test_a_key_whose_equality_cannot_be_kept_is_refused_with_advice(key: Any, advice: str) -> None:
    with pytest.raises(KeyRefusedError, match=advice) as refused:
        canonical(key)
    assert isinstance(refused.value, JobError)


def test_a_tuple_nested_without_bounds_is_refused() -> None:
    key: Any = ()
    for _ in range(10_000):
        key = (key,)
    with pytest.raises(KeyRefusedError, match="deeper"):
        canonical(key)


def test_canonical_bytes_do_not_change() -> None:
    golden = {
        None: b"n",
        1: b"i1",
        -7: b"i-7",
        2**63: b"I\x00\x80\x00\x00\x00\x00\x00\x00\x00",
        0.5: b"d?\xe0\x00\x00\x00\x00\x00\x00",
        Fraction(1, 3): b"q2:i1i3",
        "é": b"s\xc3\xa9",
        "\ud800": b"s\xed\xa0\x80",
        b"\x00": b"b\x00",
        ("word", 1): b"(5:sword2:i1",
        (): b"(",
        date(1970, 1, 1): b"D719163",
        datetime(1970, 1, 1, 0, 0, 1): b"w1000000",
        datetime(1970, 1, 1, 1, 0, 0, tzinfo=PARIS): b"z0",
        datetime(2024, 10, 27, 2, tzinfo=PARIS): b"f1729994400000000:sEurope/Paris",
        time(0, 0, 1): b"T1000000",
        time(0, 1, tzinfo=MINUTE_EAST): b"t0",
        timedelta(seconds=-1): b"l-1000000",
        uuid.UUID(int=1): b"u" + bytes(15) + b"\x01",
    }
    assert {key: canonical(key) for key in golden} == golden
    name = f"s{__name__}:Colour".encode()
    assert canonical(Colour.RED) == b"e%d:" % len(name) + name + b"sRED"
    assert [key_group(canonical(key), 128) for key in ("word", 1, ("word", 1))] == [60, 2, 5]


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from penstock.dataflow.graph.key_groups import key_group\n"
        "from penstock.dataflow.graph.keys import canonical\n"
        "keys = ['a', 'word', ('word', 1.5), b'x', None, ('a', ('b',))]\n"
        "print([(canonical(k), key_group(canonical(k), 128)) for k in keys])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@given(st.integers(1, 300), st.data())
def test_the_ranges_of_all_subtasks_partition_the_groups(most: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, most))
    ranges = [key_group_range(subtask, most, parallelism) for subtask in range(parallelism)]
    assert [group for groups in ranges for group in groups] == list(range(most))
    assert all(
        subtask_of_key_group(group, most, parallelism) == subtask
        for subtask, groups in enumerate(ranges)
        for group in groups
    )
    sizes = {len(groups) for groups in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_the_ranges_are_flinks() -> None:
    # KeyGroupRangeAssignment: start = (i * max + p - 1) / p, end = ((i + 1) * max - 1) / p.
    for parallelism in (1, 2, 3, 5, 7, 128):
        for subtask in range(parallelism):
            groups = key_group_range(subtask, 128, parallelism)
            assert groups.start == (subtask * 128 + parallelism - 1) // parallelism
            assert groups.stop - 1 == ((subtask + 1) * 128 - 1) // parallelism


@pytest.mark.parametrize(
    "call",
    [
        lambda: key_group_range(0, 4, 5),
        lambda: key_group_range(0, 4, 0),
        lambda: key_group_range(2, 4, 2),
        lambda: key_group_range(-1, 4, 2),
        lambda: subtask_of_key_group(4, 4, 2),
        lambda: subtask_of_key_group(-1, 4, 2),
        lambda: subtask_of_key_group(0, 4, 5),
    ],
)
def test_groups_and_subtasks_out_of_range_are_errors(call: Any) -> None:
    with pytest.raises(ValueError, match="is not in"):
        call()


@given(st.text())
def test_every_key_has_a_group_within_bounds(text: str) -> None:
    assert 0 <= key_group(canonical(text), 128) < 128


class UserId(int):
    """Has the equality of an int."""


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


class Degree(float):
    pass


class Token(bytes):
    pass


EQUALS: list[tuple[Any, Any]] = [
    (UserId(5), 5),
    (Name("a"), "a"),
    (Degree(-0.5), -0.5),
    (Token(b"a"), b"a"),
    (("a", UserId(5), (UserId(6),)), ("a", 5, (6,))),
]


@pytest.mark.parametrize(("key", "plain"), EQUALS, ids=lambda value: str(type(value)))
def test_a_value_that_equals_an_allowed_key_is_the_same_key(key: Any, plain: Any) -> None:
    check_same_key(key, plain)


def check_same_key(key: Any, plain: Any) -> None:
    """Check that a key counts as a plain one, which is kept in its place."""
    assert key == plain
    assert hash(key) == hash(plain)
    assert canonical(key) == canonical(plain)
    (kept,) = plain_keys([key])
    assert kept == key
    assert type(kept) is type(plain)
    assert repr(kept) == repr(plain)
    codec = Codec(TypeRegistry())
    ((row, opening),) = RowKeys(codec, canonical, 128, 10).rows(0, [key])
    assert codec.decode_value(original_key(row, opening)) == plain


def test_a_value_deep_in_a_tuple_is_replaced() -> None:
    class Number(int):
        pass

    keys = [("a", (1, ("b", Number(3)))), ("c", 2)]
    plain = plain_keys(keys)
    assert plain == keys
    assert type(plain[0][1][1][1]) is int


def test_plain_keys_stay_as_they_are() -> None:
    nested = [(("a", 1), 2), (("b", (3, None)), "c"), 4]
    assert plain_keys(nested) is nested  # such as a key of several fields with a key of a map
    for keys in ([1, "a", None], [(1, "a"), (2.0, b"")], [Pair(1, 2)], [(1, (2,))], []):
        plain = plain_keys(keys)
        assert plain == keys
        assert list(map(type, plain)) == list(map(type, keys))
