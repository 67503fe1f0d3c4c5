"""Arrow batches as batches of records, and as bytes."""

from array import array
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.serialization.arrow_batch import ArrowBatch, ArrowBuffer, merged
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry

TABLE = pa.record_batch({"n": [1, 2, None, 4], "s": ["a", None, "c", "ä"]})


@pytest.fixture
def codec():
    return Codec(TypeRegistry())


def test_rows_are_new_dicts_at_each_call():
    batch = ArrowBatch(TABLE)
    assert batch.rows() == TABLE.to_pylist() and len(batch) == 4
    batch.rows()[0]["n"] = 9
    assert batch.rows()[0]["n"] == 1 and batch[3] == {"n": 4, "s": "ä"}


def test_slices_and_selections_keep_event_times():
    batch = ArrowBatch(TABLE).with_timestamps([10, 20, 30, 40])
    part = batch.slice(1, 3)
    assert part.arrow.equals(TABLE.slice(1, 2)) and list(part.timestamps) == [20, 30]
    assert list(batch.slice(2).timestamps) == [30, 40] and len(batch.slice(3, 9)) == 1
    chosen = batch.select([3, 0])
    assert [row["n"] for row in chosen.rows()] == [4, 1] and list(chosen.timestamps) == [40, 10]


@pytest.mark.parametrize("times", [None, [5, -1, 7, 2**62]])
@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.slice(1, 2),
        pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()}),
        pa.record_batch({"l": [[1, 2], None, []], "m": [{"a": 1}, {"a": 2}, None]}),
        pa.record_batch({"t": [datetime(2024, 1, 1, tzinfo=UTC)], "x": [Decimal("1.50")]}),
        pa.record_batch({"n": [None, None]}),
    ],
)
def test_bytes_give_the_same_batch(codec, table, times):
    times = None if times is None else times[: table.num_rows]
    batch = ArrowBatch(table).with_timestamps(times)
    data = codec.encode_record_batch(batch)
    for given in (data, memoryview(data)):
        back = codec.decode_record_batch(given)
        assert back.arrow.equals(table)
        assert (back.timestamps and list(back.timestamps)) == times
    assert codec.decode_batch(data) == batch.rows()


def test_damaged_bytes_are_refused(codec):
    data = codec.encode_record_batch(ArrowBatch(TABLE))
    with pytest.raises(ProtocolError):
        codec.decode_record_batch(data[: len(data) // 2])


def test_times_in_nanoseconds_are_cut_in_rows_only():
    table = pa.record_batch({"t": pa.array([1_000_001_999], pa.timestamp("ns"))})
    assert ArrowBatch(table).rows() == [{"t": datetime(1970, 1, 1, 0, 0, 1, 1)}]
    assert ArrowBatch(pa.record_batch({"d": [date(2024, 1, 2)]})).rows() == [
        {"d": date(2024, 1, 2)}
    ]


def test_a_buffer_joins_neighbours_with_the_same_columns():
    buffer = ArrowBuffer()
    other = pa.record_batch({"x": [1]})
    for table in (TABLE, TABLE, other, TABLE):
        buffer.append(ArrowBatch(table))
    assert buffer.count == 13
    assert [batch.count for batch in buffer.merged()] == [8, 1, 4]
    timed = ArrowBuffer()
    timed.append(ArrowBatch(other, array("q", [3])))
    timed.append(ArrowBatch(other, array("q", [4])))
    [merged] = timed.merged()
    assert list(merged.timestamps) == [3, 4]


def test_other_batches_have_no_arrow_columns():
    assert RecordBatch([1]).arrow is None


def test_parts_of_a_batch_become_one_again() -> None:
    whole = ArrowBatch(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), array("q", [4, 5, 6]))
    again = merged([whole.slice(0, 2), whole.slice(2)])
    assert again.arrow.equals(whole.arrow) and list(again.times()) == [4, 5, 6]
    rows = RecordBatch([1, 2, 3], None, [4, 5, 6])
    again = merged([rows.slice(0, 2), rows.slice(2), RecordBatch([7])])
    assert again.rows() == [1, 2, 3, 7] and again.times() == [4, 5, 6, NO_TIMESTAMP]
    assert merged([RecordBatch([1]), RecordBatch([2])]).timestamps is None


@pytest.mark.parametrize(
    "other",
    [
        RecordBatch([{"a": 4}]),
        ArrowBatch(pa.RecordBatch.from_pydict({"a": ["x"]})),
        ArrowBatch(pa.RecordBatch.from_pydict({"a": [4]}), array("q", [1])),
    ],
    ids=["rows", "another type", "event times"],
)
def test_parts_with_other_columns_become_no_batch(other: RecordBatch) -> None:
    first = ArrowBatch(pa.RecordBatch.from_pydict({"a": [1]}))
    for parts in ([first, other], [other, first]):
        with pytest.raises(ProtocolError, match="other columns"):
            merged(parts)
