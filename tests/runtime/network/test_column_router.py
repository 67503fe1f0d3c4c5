"""Rows and columns of one key go to one subtask."""

import random
from array import array
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.dataflow.columns.column_key import ColumnKey, distinct_keys
from penstock.dataflow.errors import JobError
from penstock.runtime.network.output_channel import LocalOutputChannel
from penstock.runtime.network.partitioners import HashPartitioner, RebalancePartitioner
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.sizes import sized

rng = random.Random(5)
COLUMNS = {
    "int": [rng.randrange(-1000, 1000) for _ in range(300)] + [None, 2**40, -(2**62)],
    "small": [rng.randrange(50) for _ in range(300)],
    "text": [f"wörd {rng.randrange(40)}" for _ in range(100)] + [None, ""],
    "float": [rng.choice([0.0, -0.0, 1.0, 2.5, 1e300]) for _ in range(50)],
    "bytes": [bytes([rng.randrange(5)]) for _ in range(30)],
    "bool": [True, False, None, True],
    "date": [date(2024, 1, rng.randrange(1, 9)) for _ in range(20)],
    "time": [datetime(2024, 1, 1, rng.randrange(9), tzinfo=UTC) for _ in range(20)],
    "decimal": [Decimal(rng.randrange(9)) / 4 for _ in range(20)],
    "delta": [timedelta(seconds=rng.randrange(5)) for _ in range(20)],
}


def outputs(count):
    return [LocalOutputChannel(SimpleNamespace(desired_records=64), 4096) for _ in range(count)]


def routed(names, batch, parallelism):
    """The rows that each subtask gets."""
    made = outputs(parallelism)
    partitioner = HashPartitioner(made, ColumnKey(names), 128, parallelism)
    if batch.arrow is None:
        partitioner.route(batch)
    else:
        partitioner.route_arrow(batch)
    for output in made:
        output.seal()
    return [[row for one in output.sealed for row in one.rows()] for output in made]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_routed_as_rows(name, parallelism):
    values = COLUMNS[name]
    table = pa.record_batch({name: values, "place": list(range(len(values)))})
    as_rows = routed([name], RecordBatch(table.to_pylist()), parallelism)
    assert routed([name], ArrowBatch(table), parallelism) == as_rows


def test_a_key_of_several_columns_is_routed_as_a_tuple():
    table = pa.record_batch(
        {
            "a": [rng.randrange(9) for _ in range(200)],
            "b": [rng.choice(["x", "y", None]) for _ in range(200)],
            "c": [rng.randrange(3) for _ in range(200)],
        }
    )
    as_rows = routed(["a", "b", "c"], RecordBatch(table.to_pylist()), 4)
    assert routed(["a", "b", "c"], ArrowBatch(table), 4) == as_rows
    keys = distinct_keys(table, ["a", "b", "c"])
    expected = [(row["a"], row["b"], row["c"]) for row in table.to_pylist()]
    assert [keys.values[code] for code in keys.codes] == expected
    assert keys.values == list(dict.fromkeys(expected))


#: Makes the values of a key column, given a whole number.
KINDS = (lambda i: i, lambda i: -i * 2**40, lambda i: f"k{i}", lambda i: i / 2 if i % 5 else None)


@pytest.mark.parametrize("seed", range(sized(12, 200)))
def test_a_key_of_any_number_of_columns_has_the_values_of_its_rows(seed):
    rng = random.Random(seed)
    rows, width = rng.choice([0, 1, 50, 2000, 2000]), rng.randrange(1, 17)
    columns = []
    for _ in range(width):
        kind, distinct = rng.choice(KINDS), rng.choice([1, 2, 30, 10_000, 10_000])
        columns.append([kind(rng.randrange(distinct)) for _ in range(rows)])
    for column in columns:  # rows that are equal
        column += column[: rows // 3]
    names = [f"c{place}" for place in range(width)]
    expected = columns[0] if width == 1 else list(zip(*columns, strict=True))
    keys = distinct_keys(pa.record_batch(columns, names), names)
    assert [keys.values[code] for code in keys.codes.tolist()] == expected
    assert len(set(keys.values)) == len(keys) == len(set(expected))


def test_many_columns_with_many_values_are_routed_as_rows():
    # The product of the numbers of distinct values is far beyond 64 bits.
    columns = [rng.sample(range(3000), 3000) for _ in range(8)]
    names = [f"c{place}" for place in range(8)]
    table = pa.record_batch([pa.array(column + column) for column in columns], names)
    as_rows = routed(names, RecordBatch(table.to_pylist()), 5)
    assert routed(names, ArrowBatch(table), 5) == as_rows


def test_a_dictionary_column_is_a_key():
    values = ["x", "y", "x", None]
    keys = distinct_keys(pa.record_batch({"k": pa.array(values).dictionary_encode()}), ["k"])
    assert [keys.values[code] for code in keys.codes] == values


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.binary_view(), pa.large_string(), pa.binary(1)]
)
def test_the_null_of_every_type_of_texts_is_a_key(kind):
    values = ["x", None, None, "y"] if "string" in str(kind) else [b"x", None, None, b"y"]
    keys = distinct_keys(pa.record_batch({"k": pa.array(values, kind)}), ["k"])
    assert [keys.values[code] for code in keys.codes] == values


def test_rows_and_batches_keep_their_order():
    [output] = outputs(1)
    partitioner = HashPartitioner([output], ColumnKey(["n"]), 128, 1)
    arrow = ArrowBatch(pa.record_batch({"n": [1, 2]}))
    partitioner.route_arrow(arrow)
    partitioner.route(RecordBatch([{"n": 3}]))
    partitioner.route_arrow(arrow)
    partitioner.route(RecordBatch([{"n": 4}]))
    output.seal()
    assert [row["n"] for one in output.sealed for row in one.rows()] == [1, 2, 3, 1, 2, 4]


@pytest.mark.parametrize("sizes", [[10], [1] * 10, [3, 0, 7], [2, 2, 6]])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_and_columns_go_round_in_the_same_way(sizes, parallelism):
    """So which output gets a row does not depend on where the batches begin."""
    found = []
    for columns in (False, True):
        made = outputs(parallelism)
        partitioner = RebalancePartitioner(made, start=1)
        first = 0
        for size in sizes:
            rows = [{"n": n} for n in range(first, first + size)]
            times = list(range(first, first + size))
            if columns:
                schema = pa.schema([("n", pa.int64())])
                batch = pa.RecordBatch.from_pylist(rows, schema)
                partitioner.route_arrow(ArrowBatch(batch).with_timestamps(times))
            else:
                partitioner.route(RecordBatch(rows, timestamps=array("q", times)))
            first += size
        for output in made:
            output.seal()
        found.append(
            [
                [
                    pair
                    for one in output.sealed
                    for pair in zip(one.rows(), one.times(), strict=True)
                ]
                for output in made
            ]
        )
    assert found[0] == found[1]
    assert sum(map(len, found[0])) == 10


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.record_batch({"x": [1]}), "no column 'k'"),
        (pa.record_batch({"k": [[1]]}), "cannot be a key"),
        (pa.record_batch({"k": [float("nan")]}), "NaN"),
    ],
)
def test_keys_that_are_not_allowed_are_refused(table, words):
    with pytest.raises(JobError, match=words):
        routed(["k"], ArrowBatch(table), 2)
