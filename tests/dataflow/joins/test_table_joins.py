"""Joins with static tables as programs write them, and wrong programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    DataStream,
    GraphError,
    JobError,
    JoinFunction,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)

RECORDS = [("a", 1), ("b", 2), ("c", 3), ("a", 4)]
NAMES = {"a": "ann", "b": "bob"}
TABLE = pa.table({"id": ["a", "b", None], "name": ["ann", "bob", "nobody"]})
TWICE = pa.table({"id": ["a", "b", "a"], "name": ["ann", "bob", "abe"]})
SAME_NAMES = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["id", "id"])
EXPECTED = [(1, "ann"), (2, "bob"), (4, "ann")]


def stream() -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.from_collection(RECORDS)


def run(found: DataStream) -> list[Any]:
    with found.execute_and_collect(in_process=True) as records:
        return sorted(records)


def first(record: Any) -> Any:
    return record[0]


def named(record: Any, row: Any) -> Any:
    return record[1], None if row is None else row["name"]


def test_a_mapping_has_a_row_for_each_key() -> None:
    assert run(stream().join_table(NAMES, first)) == [
        (("a", 1), "ann"),
        (("a", 4), "ann"),
        (("b", 2), "bob"),
    ]
    left = stream().join_table(NAMES, 0, how="left", function=lambda record, row: (record[1], row))
    assert sorted(run(left), key=first) == [(1, "ann"), (2, "bob"), (3, None), (4, "ann")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TABLE,
        lambda: TABLE.to_batches()[0],
        lambda: TABLE.to_pandas(),
        lambda: polars.from_arrow(TABLE),
        lambda: lambda: TABLE,
        lambda: lambda: pandas.DataFrame({"id": ["a", "b"], "name": ["ann", "bob"]}),
    ],
    ids=["arrow", "batch", "pandas", "polars", "function", "function to pandas"],
)
def test_a_table_with_columns_has_dicts_as_rows(make: Callable[[], Any]) -> None:
    assert run(stream().join_table(make(), first, key="id", function=named)) == EXPECTED


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_parquet_file_or_folder_is_read_by_the_workers(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "names"
    if folder:
        path.mkdir()
        pq.write_table(TABLE.slice(0, 1), path / "one.parquet")
        pq.write_table(TABLE.slice(1), path / "two.parquet")
    else:
        pq.write_table(TABLE, path)
    given: Any = path if folder else str(path)
    assert run(stream().join_table(given, first, key="id", function=named)) == EXPECTED


class Upper(JoinFunction):
    def open(self, runtime_context: Any) -> None:
        self.change = str.upper

    def join(self, first: Any, second: Any) -> Any:
        return self.change(second)


def test_a_rich_function_makes_the_results() -> None:
    assert run(stream().join_table(NAMES, first, function=Upper())) == ["ANN", "ANN", "BOB"]


def test_a_record_is_joined_with_each_row_if_a_key_may_have_many() -> None:
    many = stream().join_table(TWICE, first, key="id", many=True, function=named)
    assert run(many) == [(1, "abe"), (1, "ann"), (2, "bob"), (4, "abe"), (4, "ann")]
    lists = {"a": ["x", "y"], "c": ()}
    left = stream().join_table(
        lists, first, many=True, how="left", function=lambda record, row: (record[1], row or "")
    )
    assert run(left) == [(1, "x"), (1, "y"), (2, ""), (4, "x"), (4, "y")]


def test_the_fields_of_a_key_name_the_columns() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_collection([{"id": "a", "day": 1}, {"id": "a", "day": 2}])
    table = pa.table({"id": ["a", "a"], "day": [1, 2], "name": ["mon", "tue"]})
    found = records.join_table(table, ("id", "day"), function=lambda record, row: row["name"])
    assert run(found) == ["mon", "tue"]


def test_the_records_keep_their_event_time() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    timed = stream().assign_timestamps_and_watermarks(strategy)
    joined = timed.join_table(NAMES, first, function=lambda record, row: row)
    other = timed.join_table({"a": ["x", "y"]}, first, many=True, function=lambda record, row: row)
    from penstock import TumblingEventTimeWindows

    windows = joined.union(other).key_by(len).window(TumblingEventTimeWindows.of(2))
    found = run(windows.apply(lambda key, window, rows: [(key, window.start, sorted(rows))]))
    assert found == [
        (1, 0, ["x", "y"]),
        (1, 4, ["x", "y"]),
        (3, 0, ["ann"]),
        (3, 2, ["bob"]),
        (3, 4, ["ann"]),
    ]


def test_a_row_that_is_emitted_and_changed_stays_as_it_is_in_the_table() -> None:
    def change(pair: Any) -> Any:
        pair[1]["name"] += "!"
        return pair[1]["name"]

    found = stream().join_table(TABLE, first, key="id").map(change)
    assert run(found) == ["ann!", "ann!", "bob!"]


def test_a_record_of_another_stream_loads_the_table_again(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    loads = tmp_path / "loads"

    def load() -> Any:
        with loads.open("a") as file:
            file.write("x")
        return NAMES

    commands = env.from_collection(["reload"])
    found = env.from_collection(RECORDS).join_table(load, first, reload_on=commands)
    assert len(run(found)) == 3
    assert len(loads.read_text()) == 2 + 2, "each of two workers loads it twice"


# ---- wrong programs


def test_a_key_with_two_rows_is_refused() -> None:
    with pytest.raises(GraphError, match=r"2 rows with the key 'a'.*many=True"):
        stream().join_table(TWICE, first, key="id")


def test_a_key_with_two_rows_is_refused_when_the_workers_load_the_table(tmp_path: Path) -> None:
    pq.write_table(TWICE, tmp_path / "twice.parquet")
    for table in (tmp_path / "twice.parquet", lambda: TWICE):
        with pytest.raises(JobError, match=r"2 rows with the key 'a'"):
            run(stream().join_table(table, first, key="id"))


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_text("this is no Parquet file")
    for path in (tmp_path / "missing.parquet", damaged):
        with pytest.raises(GraphError, match=f"the table '{path}' cannot be read"):
            stream().join_table(path, first, key="id")
    with pytest.raises(GraphError, match="only the local file system"):
        stream().join_table("s3://bucket/table", first, key="id")
    pq.write_table(TABLE, damaged)
    found = stream().join_table(damaged, first, key="id")
    damaged.unlink()
    with pytest.raises(JobError, match="cannot be read"):
        run(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": 3}, "join_table takes a mapping, a pyarrow.Table.*and got builtins.int"),
        ({"how": "outer"}, "how is 'inner' or 'left', not 'outer'"),
        ({"table": SAME_NAMES}, "has several columns 'id': rename or remove them"),
        ({"key": "number"}, "has no column 'number' for the key; it has 'id', 'name'"),
        ({"key": None}, "say which are its key, with key="),
        ({"key": 0}, "key=... is the name of a column"),
        ({"table": NAMES}, "the keys of a mapping are its keys"),
        ({"table": NAMES, "key": None, "many": True}, "a list of rows for each key"),
        ({"on": 2.5}, "join_table takes a function"),
        ({"function": lambda record: record}, "calls its function as"),
        ({"function": Upper}, "an instance, not the class"),
        ({"reload_every": 1000}, "in the memory of the program, so it cannot be loaded again"),
        ({"table": lambda: TABLE, "reload_every": 0}, "must be at least 1 ms"),
        ({"table": lambda: TABLE, "reload_on": 3}, "reload_on takes a stream, not 3"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    arguments = {"table": TABLE, "on": first, "key": "id", **options}
    with pytest.raises(GraphError, match=message):
        stream().join_table(**arguments)


def test_keys_of_other_types_than_in_the_table_are_refused() -> None:
    with pytest.raises(JobError, match=r"keys of different types: . \(int\) in the stream and 'a'"):
        run(stream().join_table(NAMES, lambda record: record[1]))
