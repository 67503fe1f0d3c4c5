"""Records to Arrow: shapes, types, and what is said of those that don't fit."""

import datetime as dt
import enum
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from penstock.connectors.lake.record_encoding import CATALYST_TYPE, RowEncoder
from penstock.dataflow.errors import JobError

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


@dataclass
class Data:
    b: str
    a: int


Named = namedtuple("Named", "a b")
Turned = namedtuple("Turned", "b a")


@pytest.mark.parametrize(
    "record",
    [(1, "x"), [1, "x"], {"b": "x", "a": 1}, Data("x", 1), Named(1, "x"), Turned("x", 1)]
    + [Row(b="x", a=1), Row("b", "a")("x", 1)],
    ids=repr,
)
def test_records_of_any_shape_are_rows(record):
    encoder = RowEncoder(SCHEMA, "table t")
    assert encoder.encode([record, record]).to_pylist() == [{"a": 1, "b": "x"}] * 2
    assert encoder.encode([record, (2, None)]).to_pylist()[0] == {"a": 1, "b": "x"}
    assert len(encoder.encode([])) == 0


class Grade(enum.IntEnum):
    GOOD = 1


class Text(str):
    pass


@dataclass
class Other:
    a: int


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"a": 1}, "column 'b': it is missing"),
        (Other(1), "column 'b': it is missing"),
        (Row(a=1), "column 'b': it is missing"),
        ({"a": 1, "b": "x", "z": 1}, "there is no column 'z'"),
        (namedtuple("Long", "a b z")(1, "x", 2), "there is no column 'z'"),
        ((1,), "it has 1 values, and there are 2 columns"),
        ((1, "x", 2), "it has 3 values"),
        (7, "it is an int, not a dict, tuple, dataclass or named tuple"),
        ("ab", "it is a str, not"),
        (None, "it is a NoneType, not"),
        (("1", "x"), "column 'a': its type is str, and int64 takes int"),
        ((True, "x"), "column 'a': its type is bool"),
        ((1.0, "x"), "column 'a': its type is float"),
        ((Grade.GOOD, "x"), "column 'a': its type is Grade"),
        ((2**63, "x"), "column 'a': it does not fit int64"),
        ((1, b"x"), "column 'b': its type is bytes"),
        ((1, Text("x")), "column 'b': its type is Text"),
        ((1, "\ud800"), "column 'b': it holds a lone surrogate"),
    ],
    ids=repr,
)
def test_a_record_that_does_not_fit_is_named_with_its_column(record, words):
    encoder = RowEncoder(SCHEMA, "table t")
    for batch in ([record], [(1, "x"), record], [(i, "x") for i in range(9000)] + [record]):
        with pytest.raises(JobError) as caught:
            encoder.encode(batch)
        assert f"a record does not fit table t: {words}" in caught.value.message
        assert caught.value.record == repr(record)


NOON = dt.datetime(2024, 1, 1, 12)
ZONED = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
MICRO = dt.timedelta(microseconds=1)
ODD = dt.timezone(dt.timedelta(seconds=30, microseconds=5))
STRUCT = pa.struct([pa.field("x", pa.int32(), False), pa.field("y", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.float64(), 1, 1.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.int8(), np.int64(-5), -5),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.50")),
        (pa.decimal128(5, 2), 7, Decimal("7.00")),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.float32(), 3.4028235e38, 3.4028234663852886e38),
        (pa.float32(), float("-inf"), float("-inf")),
        (pa.map_(pa.float32(), pa.int32()), {0.5: 1, 0.25: 2}, [(0.5, 1), (0.25, 2)]),
        (pa.timestamp("us", tz="UTC"), ZONED, ZONED),
        (pa.timestamp("us", tz="UTC"), NOON.replace(tzinfo=ODD), NOON.replace(tzinfo=ODD)),
        (pa.timestamp("us"), NOON, NOON),
        (pa.date32(), dt.date.min, dt.date.min),
        (pa.list_(STRUCT), [{"x": 1, "y": ["a", None]}, None, (2, None)],
         [{"x": 1, "y": ["a", None]}, None, {"x": 2, "y": None}]),
        (pa.map_(pa.string(), STRUCT), {"k": (1, []), "l": None},
         [("k", {"x": 1, "y": []}), ("l", None)]),
        (STRUCT, Row(y=None, x=1), {"x": 1, "y": None}),
        (pa.duration("us"), -MICRO, -MICRO),
        (pa.map_(STRUCT, pa.int8()), [({"x": 1, "y": []}, 5), [(2, None), None]],
         [({"x": 1, "y": []}, 5), ({"x": 2, "y": None}, None)]),
        (pa.map_(STRUCT, pa.int8()), {(2, None): 5}, [({"x": 2, "y": None}, 5)]),
    ],
    ids=repr,
)  # fmt: skip
def test_values_are_stored_as_their_column_says(kind, value, stored):
    table = RowEncoder(pa.schema([("c", kind)]), "t").encode([(value,), (None,), (value,)])
    table.validate(full=True)
    assert table["c"].to_pylist() == [stored, None, stored]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.int8(), 128, "'c': it does not fit int8"),
        (pa.float32(), 1e39, "'c': 1e+39 is too large for a float of 32 bits"),
        (pa.float32(), -3.45e38, "'c': -3.45e+38 is too large for a float of 32 bits"),
        (pa.float32(), 3.4028235677973366e38, "'c': 3.4028235677973366e+38 is too large"),
        (
            pa.map_(pa.float32(), pa.int32()),
            {0.1: 1, 0.10000000001: 2},
            "'c.key': two keys of one map are both stored as 0.1",
        ),
        (
            pa.map_(pa.float64(), pa.int32()),
            {float("nan"): 1, -float("nan"): 2},
            "'c.key': two keys of one map are both stored as nan",
        ),
        (
            pa.timestamp("us", tz="UTC"),
            dt.datetime.min.replace(tzinfo=ODD),
            "'c': in UTC it is not in the years 1 to 9999",
        ),
        (pa.float64(), 2**53 + 1, "'c': it does not fit double"),
        (pa.decimal128(5, 2), Decimal("1.555"), "'c': it does not fit decimal(5,2) without loss"),
        (pa.decimal128(5, 2), Decimal(1000), "'c': it does not fit decimal(5,2) without loss"),
        (pa.decimal128(5, 2), Decimal("NaN"), "'c': it does not fit decimal(5,2) without loss"),
        (pa.decimal128(5, 2), 1.5, "'c': its type is float, and decimal128(5, 2) takes Decimal"),
        (pa.date32(), NOON, "'c': its type is datetime, and date32[day] takes date"),
        (pa.timestamp("us"), ZONED, "'c': a TIMESTAMP_NTZ takes a datetime without"),
        (pa.timestamp("us", tz="UTC"), NOON, "'c': a TIMESTAMP is an instant"),
        (pa.timestamp("us"), pd.Timestamp(NOON), "'c': its type is Timestamp"),
        (pa.list_(pa.int32()), "ab", "'c': its type is str, and an array takes a list"),
        (pa.list_(pa.int32()), [1, "a"], "'c[]': its type is str"),
        (pa.map_(pa.string(), pa.int32()), {None: 1}, "'c.key': it is None"),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], "'c': its type is list, and a map takes"),
        (STRUCT, {"x": None, "y": None}, "'c.x': it is None, and the column is NOT NULL"),
        (STRUCT, {"x": 1}, "'c.y': it is missing"),
        (pa.list_(STRUCT), [(1, [2])], "'c[].y[]': its type is int"),
        (pa.duration("us"), 5, "'c': its type is int, and duration[us] takes timedelta"),
        (pa.duration("us"), dt.timedelta.max, "'c': it does not fit duration[us]"),
        (pa.map_(STRUCT, pa.int8()), [(1, 2, 3)], "'c': a map with such keys takes a list of"),
        (pa.map_(STRUCT, pa.int8()), "ab", "'c': its type is str, and a map takes a list"),
        (
            pa.map_(STRUCT, pa.int8()),
            [((1, None), 2), ({"x": 1, "y": None}, 3)],
            "'c.key': two keys of one map are both stored as {'x': 1, 'y': None}",
        ),
    ],
    ids=repr,
)
def test_values_are_never_bent_to_fit(kind, value, words):
    encoder = RowEncoder(pa.schema([("c", kind)]), "t")
    with pytest.raises(JobError) as caught:
        encoder.encode([(None,), (value,)])
    assert f"column {words}" in caught.value.message


def test_the_length_of_text_is_kept_to():
    fields = [
        pa.field("v", pa.string(), metadata={"varchar": "2"}),
        pa.field("c", pa.string(), metadata={"char": "3"}),
    ]
    encoder = RowEncoder(pa.schema(fields), "t")
    assert encoder.encode([("éé", "x"), (None, None)]).to_pylist()[0] == {"v": "éé", "c": "x  "}
    with pytest.raises(JobError, match=r"column 'v': 3 characters are too many for varchar\(2\)"):
        encoder.encode([("abc", "x")])


@pytest.mark.parametrize(
    ("interval", "kind", "value", "wrong"),
    [
        ("interval day", pa.duration("us"), dt.timedelta(days=-2), dt.timedelta(days=1, hours=1)),
        (
            "interval day to hour",
            pa.duration("us"),
            dt.timedelta(hours=25),
            dt.timedelta(minutes=1),
        ),
        ("interval minute to second", pa.duration("us"), MICRO, None),
        ("interval year", pa.int32(), 24, 25),
        ("interval year to month", pa.int32(), 25, None),
    ],
)
def test_an_interval_is_a_multiple_of_its_last_unit(interval, kind, value, wrong):
    encoder = RowEncoder(pa.schema([pa.field("c", kind, metadata={CATALYST_TYPE: interval})]), "t")
    assert encoder.encode([(value,), (None,)])["c"].to_pylist() == [value, None]
    if wrong is not None:
        with pytest.raises(JobError, match=f"does not fit {interval} without loss"):
            encoder.encode([(value,), (wrong,)])


LEAVES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.bool_(): st.booleans(),
}


def nested(children):
    """Types made of types, each with a strategy of its values as Arrow gives them back."""
    pairs = st.tuples(children, children)
    return st.one_of(
        children.map(lambda c: (pa.list_(c[0]), st.lists(c[1], max_size=3))),
        pairs.map(
            lambda c: (
                pa.struct([("p", c[0][0]), ("q", c[1][0])]),
                st.fixed_dictionaries({"p": c[0][1], "q": c[1][1]}),
            )
        ),
        children.map(
            lambda c: (pa.map_(pa.int64(), c[0]), st.dictionaries(LEAVES[pa.int64()], c[1]))
        ),
    ).map(lambda c: (c[0], st.none() | c[1]))


KINDS = st.recursive(
    st.sampled_from([(kind, st.none() | values) for kind, values in LEAVES.items()]),
    nested,
    max_leaves=4,
)


@given(st.data())
def test_any_nesting_comes_back_as_arrow_itself_makes_it(data):
    kind, values = data.draw(KINDS)
    column = data.draw(st.lists(values, max_size=5))
    table = RowEncoder(pa.schema([("c", kind)]), "t").encode([(value,) for value in column])
    table.validate(full=True)
    expected = [list(v.items()) if pa.types.is_map(kind) and v else v for v in column]
    assert table["c"].to_pylist() == pa.array(expected, kind).to_pylist() or "map" in str(kind)
