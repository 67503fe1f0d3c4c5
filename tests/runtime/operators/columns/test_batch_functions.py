"""`map_batches` in all formats, with event times and wrong results."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import (
    BatchFunction,
    ColumnTimestamps,
    GraphError,
    JobError,
    Row,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.runtime.operators.columns.batch_formats import arrow_batch_of
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.testing import OperatorHarness

ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": "c"}]


def doubled_arrow(batch):
    return batch.set_column(0, "n", pc.multiply(batch.column("n"), 2))


def doubled_frame(frame):
    return frame.assign(n=frame["n"] * 2)


def doubled_polars(frame):
    import polars

    return frame.with_columns(polars.col("n") * 2)


def doubled_rows(rows):
    return [{**row, "n": row["n"] * 2} for row in rows]


FUNCTIONS = {
    "arrow": doubled_arrow,
    "pandas": doubled_frame,
    "polars": doubled_polars,
    "rows": doubled_rows,
}


def outcome(piece, rows=ROWS, times=None):
    harness = OperatorHarness(piece)
    harness.process_elements(list(zip(rows, times or [None] * len(rows), strict=True)))
    return harness.extract_output_records()


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("format", FUNCTIONS)
def test_each_format_gives_the_same_rows(format, columns):
    def piece(stream):
        stream = stream.map_batches(lambda batch: batch) if columns else stream
        return stream.map_batches(FUNCTIONS[format], format)

    assert [one.value for one in outcome(piece)] == doubled_rows(ROWS)


@pytest.mark.parametrize("format", FUNCTIONS)
def test_a_result_may_have_any_form(format):
    results = {
        "arrow": lambda: pa.table({"x": [1, 2]}),
        "pandas": lambda: pa.table({"x": [1, 2]}).to_pandas(),
        "polars": lambda: __import__("polars").DataFrame({"x": [1, 2]}).lazy(),
        "rows": lambda: iter([{"x": 1}, {"x": 2}]),
    }
    piece = lambda stream: stream.map_batches(lambda _: results[format](), "rows")  # noqa: E731
    harness = OperatorHarness(piece)
    harness.process_element(1)
    assert harness.extract_output_values() == [{"x": 1}, {"x": 2}]


def test_rows_with_event_times_keep_them_if_the_function_keeps_rows():
    for format, function in FUNCTIONS.items():
        piece = lambda stream, f=function, g=format: stream.map_batches(f, g, keep_rows=True)  # noqa: E731
        got = outcome(piece, times=[5, 6, 7])
        assert [(one.value["n"], one.timestamp) for one in got] == [(2, 5), (4, 6), (6, 7)]


@pytest.mark.parametrize("format", FUNCTIONS)
def test_another_number_of_rows_is_an_error_if_rows_are_kept(format):
    pieces = {"arrow": lambda b: b.slice(1), "pandas": lambda f: f[1:], "rows": lambda r: r[1:]}
    function = pieces.get(format, lambda f: f.slice(1))
    harness = OperatorHarness(lambda s: s.map_batches(function, format, keep_rows=True))
    with pytest.raises(JobError, match=r"returned 0 rows for 1: with keep_rows=True"):
        harness.process_element(ROWS[0])


def test_event_times_may_be_a_column_of_the_result():
    def piece(stream):
        return stream.map_batches(lambda batch: batch.filter(pc.field("n") > 1), timestamps="n")

    assert [one.timestamp for one in outcome(piece)] == [2, 3]
    got = outcome(lambda s: s.map_batches(lambda r: r[:1], "rows", timestamps="n"))
    assert got[0].timestamp == 1
    with pytest.raises(JobError, match="column 'n' gives the event times, and has 1 nulls"):
        outcome(
            lambda s: s.map_batches(lambda b: b, timestamps="n", schema={"n": "int64"}),
            [{"n": None}],
        )


def test_without_either_results_have_no_event_times():
    got = outcome(lambda stream: stream.map_batches(lambda batch: batch), times=[1, 2, 3])
    assert {one.timestamp for one in got} == {None}


def test_named_records_become_columns_and_a_schema_names_tuples():
    piece = lambda stream: stream.map_batches(lambda batch: batch)  # noqa: E731
    assert outcome(piece, [Row(a=1, b="x")])[0].value == {"a": 1, "b": "x"}
    schema = {"a": "int32", "b": "string"}
    got = outcome(lambda s: s.map_batches(lambda batch: batch, schema=schema), [(1, "x")])
    assert got[0].value == {"a": 1, "b": "x"}


class Adder(BatchFunction):
    def open(self, runtime_context):
        self.more = 10

    def map_batch(self, batch):
        return doubled_rows([{"n": row["n"] + self.more} for row in batch])


def test_records_that_are_arrow_batches_are_joined():
    first, second = pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})
    joined = arrow_batch_of(RecordBatch([first, second]))
    assert joined.column(0).to_pylist() == [1, 2, 3]
    assert arrow_batch_of(RecordBatch([first.slice(0, 0)])).num_rows == 0
    with pytest.raises(JobError, match="cannot be joined"):
        arrow_batch_of(RecordBatch([first, pa.record_batch({"x": [1]})]))


def test_a_batch_function_is_opened():
    assert outcome(lambda s: s.map_batches(Adder(), "rows"), ROWS[:1])[0].value == {"n": 22}


def test_records_that_the_function_keeps_are_copied():
    kept = []

    def function(rows):
        kept.extend(rows)
        for row in kept:
            row["n"] += 1
        return rows

    harness = OperatorHarness(lambda stream: stream.map_batches(function, "rows"))
    harness.process_element({"n": 0})
    harness.process_element({"n": 0})
    assert [row["n"] for row in harness.extract_output_values()] == [1, 1]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: None, "returned NoneType.*lack a `return`"),
        (lambda batch: 5, "returned int"),
        (lambda batch: "text", "returned str"),
        (lambda batch: batch.column(0), "returned Int64Array"),
        (lambda batch: {"a": 1}, "returned dict"),
        (lambda batch: pa.table([[1], [2]], names=["a", "a"]), "several columns with the name 'a'"),
        (lambda batch: batch.select([]), "rows has no columns"),
    ],
)
def test_a_result_that_is_no_batch_is_refused(function, words):
    with pytest.raises(JobError, match=words):
        outcome(lambda stream: stream.map_batches(function))


def test_a_named_index_of_pandas_becomes_columns():
    sums = lambda frame: frame.groupby("n").sum()  # noqa: E731
    harness = OperatorHarness(lambda stream: stream.map_batches(sums, "pandas"))
    harness.process_element({"n": 3, "x": 4})
    assert harness.extract_output_values() == [{"n": 3, "x": 4}]


def test_records_without_names_are_refused():
    with pytest.raises(JobError, match="columns need names, and a int has none"):
        outcome(lambda stream: stream.map_batches(lambda batch: batch), [1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"format": "numpy"}, "one of arrow, pandas, polars, rows"),
        ({"keep_rows": True, "timestamps": "t"}, "or timestamps, not both"),
        ({"timestamps": 3}, "the name of a column"),
        ({"func": 3}, "a function or a BatchFunction"),
        ({"func": Adder}, "an object, not the class"),
        ({"func": lambda: 1}, "map_batches"),
        ({"schema": 3}, "a pyarrow.Schema, or a dict"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, words):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(GraphError, match=words):
        stream.map_batches(**{"func": lambda batch: batch, **arguments})


@pytest.mark.parametrize(
    ("aggregates", "words"),
    [
        ({}, "agg needs an aggregate"),
        ({"k": ("n", "sum")}, "has a column 'k' already"),
        ({"s": "n"}, "a pair of a column and a function"),
        ({"s": ("n", "median")}, "one of count, sum, min, max, mean"),
        ({"s": ("*", "sum")}, "only counted"),
        ({"s": (1, "sum")}, "name of a column"),
    ],
)
def test_aggregates_that_make_no_sense_are_refused(aggregates, words):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(GraphError, match=words):
        stream.group_by("k").agg(**aggregates)


def test_keys_and_windows_that_make_no_sense_are_refused():
    from penstock import GlobalWindows

    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    for columns in ((), (1,), ("",)):
        with pytest.raises(GraphError, match="name of a column"):
            stream.group_by(*columns)
    with pytest.raises(GraphError, match="twice"):
        stream.group_by("a", "a")
    with pytest.raises(GraphError, match="for other windows, triggers and evictors, use key_by"):
        stream.group_by("a").window(GlobalWindows.create())


@pytest.mark.parametrize("columns", [True, False])
def test_event_times_from_a_column_are_those_of_rows(columns):
    import datetime

    utc, moment = datetime.UTC, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500)
    values = {
        "whole": [5, -7],
        "aware": [moment.replace(tzinfo=utc), datetime.datetime(2024, 1, 1, tzinfo=utc)],
        "naive": [moment, datetime.datetime(2024, 1, 1)],
        "day": [datetime.date(1969, 12, 31), datetime.date(2024, 1, 1)],
    }
    times = {"whole": [5, -7], "day": [-86_400_000, 1_704_067_200_000]}
    for name, column in values.items():
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            ColumnTimestamps(name)
        )

        def piece(stream, strategy=strategy):
            stream = stream.map_batches(lambda batch: batch) if columns else stream
            return stream.assign_timestamps_and_watermarks(strategy)

        got = outcome(piece, [{name: value} for value in column])
        assert [one.timestamp for one in got] == times.get(name, [-1, 1_704_067_200_000])


def test_a_window_without_event_times_is_refused_when_the_program_is_built():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([{"k": 1}])
    stream.group_by("k").window(TumblingEventTimeWindows.of(5)).agg(n=("*", "count")).print()
    with pytest.raises(GraphError, match="needs event time"):
        env.get_execution_plan()


def test_a_job_without_columns_does_not_import_pyarrow():
    code = """
import sys
from penstock import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.set_in_process(True)
stream = env.from_collection([1, 2]).key_by(lambda n: n).map(lambda n: n + 1)
assert sorted(stream.execute_and_collect()) == [2, 3]
print([name for name in ("pyarrow", "numpy", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
