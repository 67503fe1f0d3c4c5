"""`ParquetSink`: rows and batches in, files that any reader of Parquet reads, exactly once."""

from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import GraphError, JobError, ParquetSink, Row, StreamExecutionEnvironment
from penstock.dataflow.sink import Committable, WriterContext

Pair = namedtuple("Pair", "user amount")


@dataclass
class Visit:
    user: str
    amount: int


def write(sink, *batches, columns=(), number=1, subtask=0):
    context = WriterContext("sink", "sink", subtask, 2, 1, "line")
    writer = sink.create_writer(context)
    try:
        for batch in batches:
            writer.write(batch)
        for batch in columns:
            writer.write_columns(batch)
        seal = writer.prepare(number)
        payloads = msgpack.unpackb(msgpack.packb(seal() if seal else []))
    finally:
        writer.close()
    return [Committable("line", "sink", subtask, number, 1, one) for one in payloads]


def read(folder):
    return pq.read_table(folder, partitioning=None).to_pylist()


ROWS = [{"user": "ann", "amount": 1}, {"user": "bob", "amount": 2}]


@pytest.mark.parametrize(
    "records",
    [
        ROWS,
        [Row(user="ann", amount=1), Row(user="bob", amount=2)],
        [Pair("ann", 1), Pair("bob", 2)],
        [Visit("ann", 1), Visit("bob", 2)],
    ],
)
def test_records_with_names_become_rows(tmp_path, records):
    sink = ParquetSink(tmp_path / "out")
    sink.create_committer().commit(write(sink, records))
    assert read(tmp_path / "out") == ROWS


def test_a_schema_gives_types_and_names_to_tuples(tmp_path):
    sink = ParquetSink(tmp_path / "out", {"user": "string", "amount": "int32"})
    sink.create_committer().commit(write(sink, [("ann", 1)], [{"amount": 2}]))
    table = pq.read_table(tmp_path / "out")
    assert table.schema.equals(pa.schema({"user": "string", "amount": "int32"}))
    assert table.to_pylist() == [{"user": "ann", "amount": 1}, {"user": None, "amount": 2}]


def test_batches_and_rows_go_into_one_file_in_their_order(tmp_path):
    sink = ParquetSink(tmp_path / "out", row_group_rows=3)
    context = WriterContext("sink", "sink", 0, 1, 1, "line")
    writer = sink.create_writer(context)
    writer.write([{"n": 0}])
    writer.write_columns(pa.record_batch({"n": [1, 2]}))
    writer.write([{"n": 3}])
    [payload] = writer.prepare(4)()
    sink.create_committer().commit([Committable("line", "sink", 0, 4, 1, payload)])
    [path] = (tmp_path / "out").glob("part-*.parquet")
    assert [row["n"] for row in read(path)] == [0, 1, 2, 3]
    assert pq.ParquetFile(path).num_row_groups == 2


def test_nothing_is_visible_before_the_commit_and_committing_twice_is_harmless(tmp_path):
    sink = ParquetSink(tmp_path / "out")
    committables = write(sink, ROWS)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_staging"]
    for _ in range(2):
        sink.create_committer().commit(committables)
        assert read(tmp_path / "out") == ROWS


def test_a_subtask_without_records_writes_no_file(tmp_path):
    assert write(ParquetSink(tmp_path / "out")) == []


def test_times_keep_their_instants(tmp_path):
    instant = datetime(2024, 5, 1, 12, tzinfo=UTC)
    sink = ParquetSink(tmp_path / "out")
    sink.create_committer().commit(write(sink, [{"at": instant}]))
    assert read(tmp_path / "out")[0]["at"] == instant


@pytest.mark.parametrize(
    ("schema", "records", "words"),
    [
        (None, [1], "columns need names, and a int has none"),
        (None, [("ann", 1)], "with a schema, tuples work"),
        (None, [{"a": 1}, {"a": "x"}], "column 'a' do not fit one type.*give a schema"),
        ({"a": "int64"}, [{"a": 1, "b": 2}], "field 'b', which is no column"),
        ({"a": "int64"}, [{"a": "x"}], "column 'a' do not fit int64"),
        ({"a": "int64"}, [(1, 2)], "has 2 items, and the schema has 1 columns"),
        (None, [Row(1, 2)], "a Row without field names"),
        (None, [{}], "a record without fields"),
        ({"a": "int64"}, [{"a": 1.5}], "column 'a' do not fit int64: 1.5 would"),
        ({"a": "int64"}, [{"a": 2}, {"a": Decimal("1.5")}], "column 'a'.*data loss"),
        (
            {"a": pa.list_(pa.int8())},
            [{"a": [1, 2.5]}],
            "column 'a'.* 2.5 would be changed or lost",
        ),
        ({"a": pa.timestamp("s")}, [{"a": datetime(2024, 5, 1, 0, 0, 0, 7)}], "lose data"),
        ({"a": "date32"}, [{"a": date(2024, 5, 1)}, {"a": 1.5}], "1.5 would be changed or lost"),
        ({"a": "date32"}, [{"a": datetime(2024, 5, 1, 1)}], "would be changed or lost"),
        ({"a": pa.time64("us")}, [{"a": 0.5}], "0.5 would be changed or lost"),
        ({"a": pa.duration("s")}, [{"a": 0.5}], "0.5 would be changed or lost"),
        ({"a": pa.dictionary("int8", "int64")}, [{"a": 1.5}], "1.5 would be changed or lost"),
        ({"a": pa.struct({"b": "int8"})}, [{"a": {"b": 1, "c": 2}}], "{'c': 2} would be changed"),
        ({"a": pa.map_("string", "int8")}, [{"a": {"k": 1.5}}], "1.5 would be changed or lost"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_and_shown(tmp_path, schema, records, words):
    with pytest.raises(JobError, match=words) as caught:
        write(ParquetSink(tmp_path / "out", schema), records)
    assert caught.value.record is not None


def test_a_file_whose_first_rows_decided_otherwise_asks_for_a_schema(tmp_path):
    sink = ParquetSink(tmp_path / "out", row_group_rows=1)
    with pytest.raises(JobError, match="give ParquetSink a schema"):
        write(sink, [{"a": 1}], [{"a": "x"}])


def test_values_that_fit_a_type_exactly_are_converted(tmp_path):
    kinds = {"a": "int8", "b": pa.list_(pa.int64()), "c": "date32"}
    sink = ParquetSink(tmp_path / "out", kinds)
    day = date(2024, 5, 1)
    rows = [
        {"a": 1.0, "b": [2.0, None], "c": datetime(2024, 5, 1)},
        {"a": Decimal("3.00"), "b": None, "c": day},
    ]
    sink.create_committer().commit(write(sink, rows))
    assert read(tmp_path / "out") == [
        {"a": 1, "b": [2, None], "c": day},
        {"a": 3, "b": None, "c": day},
    ]


def test_the_first_row_group_of_arrow_batches_decides_the_schema(tmp_path):
    sink = ParquetSink(tmp_path / "out", row_group_rows=3)
    first, second = pa.record_batch({"a": pa.nulls(1)}), pa.record_batch({"b": [1], "a": ["x"]})
    sink.create_committer().commit(write(sink, columns=[first, second]))
    assert read(tmp_path / "out") == [{"a": None, "b": None}, {"a": "x", "b": 1}]
    with pytest.raises(JobError, match="give ParquetSink a schema"):
        write(sink, columns=[first, first, first, second])


def test_a_batch_with_other_columns_is_refused(tmp_path):
    sink = ParquetSink(tmp_path / "out", {"a": "int64"})
    with pytest.raises(JobError, match=r"the columns \['b'\], and the schema has the columns"):
        write(sink, columns=[pa.record_batch({"b": [1]})])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compression": "zip"}, "one of snappy"),
        ({"row_group_rows": 0}, "at least 1"),
        ({"schema": ["a"]}, "a pyarrow.Schema, or a dict"),
        ({"schema": {"a": "number"}}, "no usable type for column 'a'"),
        ({"schema": pa.schema([("a", "int8"), ("a", "int8")])}, "several columns 'a'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, arguments, words):
    with pytest.raises(GraphError, match=words):
        ParquetSink(tmp_path, **arguments)


def test_a_job_writes_each_row_once(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    env.set_parallelism(2)
    numbers = env.from_sequence(1, 1000).map(lambda n: {"n": n, "square": n * n})
    numbers.rebalance().sink_to(ParquetSink(tmp_path / "out"))
    env.execute("squares")
    rows = read(tmp_path / "out")
    assert sorted(row["n"] for row in rows) == list(range(1, 1001))
    assert all(row["square"] == row["n"] ** 2 for row in rows)
