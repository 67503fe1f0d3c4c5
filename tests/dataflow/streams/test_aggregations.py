"""`sum`, `min`, `max`, `min_by` and `max_by`, and the methods that a keyed stream refuses."""

from __future__ import annotations

import operator
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import (
    CountTumblingWindowAssigner,
    GraphError,
    JobError,
    MapStateDescriptor,
    Row,
    StreamExecutionEnvironment,
)
from penstock.dataflow.streams.aggregations import FieldAggregation, FieldChoice

METHODS = ("sum", "min", "max", "min_by", "max_by")
Pair = namedtuple("Pair", "name amount")


@dataclass
class Sale:
    shop: str
    amount: int


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_in_process()


def aggregated(records: list[Any], method: str, *position: Any) -> list[Any]:
    keyed = environment().from_collection(records).key_by(lambda _: 0)
    return list(getattr(keyed, method)(*position).execute_and_collect())


@pytest.mark.parametrize(
    ("method", "records", "expected"),
    [
        ("sum", [3, 1, 2], [3, 4, 6]),
        ("sum", ["a", "b"], ["a", "ab"]),
        ("min", [3, 1, 2], [3, 1, 1]),
        ("max", ["ab", "ac", "aa"], ["ab", "ac", "ac"]),
        ("min_by", ["ab", "ac", "aa"], ["ab", "ab", "aa"]),
        ("max_by", ["ab", "ac", "aa"], ["ab", "ac", "ac"]),
        ("max_by", [b"\x01\x02", b"\x01\x03"], [b"\x01\x02", b"\x01\x03"]),
    ],
)
@pytest.mark.parametrize("position", [(), (None,), (0,)])
def test_a_plain_record_is_aggregated_as_a_whole(
    method: str, records: list[Any], expected: list[Any], position: tuple[Any, ...]
):
    assert aggregated(records, method, *position) == expected


def test_the_default_is_the_first_field_of_records_with_positions():
    assert aggregated([(1, "a"), (2, "b")], "sum") == [(1, "a"), (3, "a")]
    assert aggregated([[5, "a"], [2, "b"]], "min") == [[5, "a"], [2, "a"]]
    assert aggregated([(5, "a"), (5, "b"), (6, "c")], "max_by") == [(5, "a"), (5, "a"), (6, "c")]
    rows = [Row(n=1, word="a"), Row(n=2, word="b")]
    assert aggregated(rows, "sum") == [rows[0], Row(n=3, word="a")]
    assert aggregated([(5, "a"), (5, "b")], "max_by", None) == [(5, "a"), (5, "b")]


def test_fields_are_found_by_name():
    total = FieldAggregation("amount", operator.add)
    assert total.reduce(Sale("a", 1), Sale("b", 2)) == Sale("a", 3)
    assert total.reduce(Pair("a", 1), Pair("b", 2)) == Pair("a", 3)
    assert total.reduce({"amount": 1, "k": 0}, {"amount": 2}) == {"amount": 3, "k": 0}
    best = FieldChoice("amount", operator.gt)
    assert best.reduce(Sale("a", 1), Sale("b", 2)) == Sale("b", 2)
    assert best.reduce(Row(amount=2), Row(amount=1)) == Row(amount=2)


def test_a_window_aggregates_plain_records_as_a_whole():
    stream = environment().from_collection(["ab", "ac", "aa"]).key_by(lambda _: 0)
    windows = stream.window(CountTumblingWindowAssigner.of(3))
    assert list(windows.max_by().execute_and_collect()) == ["ac"]
    numbers = environment().from_collection([3, 1, 2]).key_by(lambda _: 0)
    assert list(numbers.count_window(3).sum().execute_and_collect()) == [6]


@pytest.mark.parametrize(
    ("records", "position", "message"),
    [
        ([1, 2], (1,), "int has no field 1: it is one value"),
        (["ab", "ac"], (1,), "str has no field 1: it is one value"),
        ([Sale("a", 1), Sale("b", 2)], (), "the fields of a Sale have names and no positions"),
    ],
)
def test_a_position_that_a_record_lacks_is_an_error(
    records: list[Any], position: tuple[Any, ...], message: str
):
    for method in METHODS:
        with pytest.raises(JobError, match=message):
            aggregated(records, method, *position)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("forward", ()),
        ("rebalance", ()),
        ("rescale", ()),
        ("shuffle", ()),
        ("global_", ()),
        ("broadcast", ()),
        ("broadcast", (MapStateDescriptor("rules"),)),
        ("partition_custom", (lambda key, n: 0, lambda record: record)),
    ],
)
def test_the_partitioning_of_a_keyed_stream_is_fixed(method: str, arguments: tuple[Any, ...]):
    keyed = environment().from_collection([1]).key_by(lambda n: n)
    message = f"{method} cannot change the partitioning of a keyed stream: call it on the stream b"
    with pytest.raises(GraphError, match=message):
        getattr(keyed, method)(*arguments)
    getattr(keyed.count(), method)(*arguments)


def test_a_keyed_stream_gives_its_records_to_the_program():
    keyed = environment().from_collection([1, 2]).key_by(lambda n: -n)
    assert list(keyed.execute_and_collect()) == [1, 2]
