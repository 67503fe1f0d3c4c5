"""Tuples by column: that nobody can tell them from tuples, whoever makes, sends or takes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.record_batch import (
    ColumnBuffer,
    RecordBatch,
    RecordBuffer,
)
from tests.runtime.operators.test_operators import CODEC
from tests.sizes import sized

ROWS = [("a", 1, 2.5), ("b", 2, None), ("c", 3, b"x"), ("a", 4, 0.0)]


def by_column(rows: list[tuple[Any, ...]]) -> RecordBatch:
    return RecordBatch.of_columns([list(column) for column in zip(*rows, strict=True)])


@pytest.mark.parametrize("batch", [RecordBatch(list(ROWS)), by_column(ROWS)])
def test_a_batch_is_its_records_however_it_is_held(batch: RecordBatch) -> None:
    assert len(batch) == 4 and batch.rows() == ROWS
    assert batch[1] == ROWS[1] and batch[-1] == ROWS[-1]
    assert batch.slice(1, 3).rows() == ROWS[1:3] and batch.slice(2).rows() == ROWS[2:]
    assert not batch.slice(4) and len(batch.slice(4)) == 0
    assert repr(batch) == f"RecordBatch({ROWS!r})"
    with pytest.raises(IndexError):
        batch[4]


def test_a_batch_says_how_it_is_held() -> None:
    assert RecordBatch(ROWS).rows() is ROWS and RecordBatch(ROWS).columns() is None
    assert by_column(ROWS).columns() == [list(column) for column in zip(*ROWS, strict=True)]


@pytest.mark.parametrize("layout", [(None,), (None, None), ((7,), None), (None, (None,), None)])
def test_pending_columns_are_cut_and_given_as_lists_are(layout: tuple[Any, ...]) -> None:
    pending, plain = ColumnBuffer(layout), RecordBuffer()
    for number in range(10):
        row = [(number, place) if item is None else item[0] for place, item in enumerate(layout)]
        plain.records.append(tuple(row))
        varying = [value for value, item in zip(row, layout, strict=True) if item is None]
        pending.records.append(varying[0])
        for place, value in enumerate(varying[1:], start=1):
            getattr(pending, f"column{place}").append(value)
    assert pending.copy(2, 5).rows() == plain.copy(2, 5).rows()
    for each in (pending, plain):
        each.drop(3)
    assert len(pending.records) == 7
    assert pending.take().rows() == plain.take().rows() and not pending.records
    assert not pending.take()


# ---- over a connection

atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
items = atoms | st.tuples(atoms, atoms) | st.lists(atoms, max_size=3)
batches = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[items] * width), min_size=1, max_size=20)
)


def typed(value: Any) -> Any:
    """What two values share exactly if they are equal in value and type."""
    return repr(value)


@settings(max_examples=sized(100, 1000), deadline=None)
@given(batches)
def test_columns_are_sent_as_their_rows_are(rows: list[tuple[Any, ...]]) -> None:
    data = CODEC.encode_record_batch(by_column(rows))
    assert data == CODEC.encode_batch(rows) == CODEC.encode_record_batch(RecordBatch(rows))
    found = CODEC.decode_record_batch(data)
    assert found.columns() is not None
    assert typed(found.rows()) == typed(CODEC.decode_batch(data)) == typed(rows)


@pytest.mark.parametrize("batch", [[1, 2], ["a"], [{"a": 1}], [(1,), (1, 2)], [()]])
def test_what_is_no_batch_of_tuples_comes_as_it_is(batch: list[Any]) -> None:
    found = CODEC.decode_record_batch(CODEC.encode_batch(batch))
    assert found.rows() == batch and found.columns() is None


@settings(max_examples=sized(200, 2000), deadline=None)
@given(batches, st.data())
def test_damaged_columns_are_an_error_or_other_columns(
    rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    encoded = bytearray(CODEC.encode_batch(rows))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = CODEC.decode_record_batch(bytes(encoded))
    except ProtocolError:
        return
    assert len(found.rows()) == len(found)
