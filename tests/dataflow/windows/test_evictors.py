"""Which records evictors remove."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    NO_TIMESTAMP,
    CountEvictor,
    DeltaEvictor,
    Evictor,
    GlobalWindow,
    GraphError,
    Time,
    TimeEvictor,
    TimestampedValue,
)


def left(evictor: Evictor, records: list[Any], after: bool = False) -> list[Any]:
    elements = [TimestampedValue(*record) for record in records]
    evict = evictor.evict_after if after else evictor.evict_before
    evict(elements, len(elements), GlobalWindow(), None)  # type: ignore[arg-type]
    return [element.value for element in elements]


RECORDS = [("a", 0), ("b", 7), ("c", 3), ("d", 10), ("e", 5)]


@pytest.mark.parametrize(
    ("count", "kept"),
    [(0, []), (1, ["e"]), (3, ["c", "d", "e"]), (5, list("abcde")), (9, list("abcde"))],
)
def test_a_count_evictor_keeps_the_last_records(count: int, kept: list[str]):
    assert left(CountEvictor.of(count), RECORDS) == kept


def test_a_time_evictor_keeps_records_near_the_highest_timestamp():
    assert left(TimeEvictor.of(Time.milliseconds(5)), RECORDS) == ["b", "d"]
    assert left(TimeEvictor.of(6), RECORDS) == ["b", "d", "e"]
    assert left(TimeEvictor.of(11), RECORDS) == list("abcde")
    assert left(TimeEvictor.of(1), [("a", -5), ("b", -6)]) == ["a"]


def test_a_time_evictor_leaves_records_without_timestamps():
    records = [("a", NO_TIMESTAMP), ("b", NO_TIMESTAMP)]
    assert left(TimeEvictor.of(1), records) == ["a", "b"]
    assert not TimestampedValue("a", NO_TIMESTAMP).has_timestamp()
    value = TimestampedValue("a", 5)
    assert (value.get_value(), value.get_timestamp(), value.has_timestamp()) == ("a", 5, True)


def test_a_delta_evictor_keeps_records_like_the_last_one():
    records = [(1, 0), (10, 0), (8, 0), (12, 0), (9, 0)]
    evictor = DeltaEvictor.of(3, lambda record, last: abs(record - last))
    assert left(evictor, records) == [10, 8, 9]


@pytest.mark.parametrize(
    "make",
    [
        lambda after: CountEvictor.of(1, after),
        lambda after: TimeEvictor.of(1, after),
        lambda after: DeltaEvictor.of(1, lambda record, last: 0 if record == "e" else 1, after),
    ],
)
def test_records_are_removed_before_or_after_the_function(make: Any):
    assert len(left(make(False), RECORDS)) == 1
    assert len(left(make(False), RECORDS, after=True)) == 5
    assert len(left(make(True), RECORDS)) == 5
    assert len(left(make(True), RECORDS, after=True)) == 1
    for after in (False, True):
        assert left(make(after), [], after) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CountEvictor.of(-1), "the count of a CountEvictor must be at least 0"),
        (lambda: TimeEvictor.of("5 s"), "the size of a TimeEvictor .* write 5000"),
        (lambda: DeltaEvictor.of("3", lambda a, b: 0), "the threshold of a DeltaEvictor"),
        (lambda: DeltaEvictor.of(3, lambda a: 0), r"DeltaEvictor calls its function as"),
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make()
