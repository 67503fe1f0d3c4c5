"""`SparkTableSink` that overwrites and upserts."""

import datetime as dt
import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from penstock.connectors.spark.sink.catalog import Catalog
from penstock.connectors.spark.sink.table_sink import SparkTableSink
from penstock.dataflow.errors import GraphError, JobError
from tests.spark.sink_tasks import Crash, Task, crashed


@pytest.fixture
def table(spark):
    """Makes a table with rows that is dropped after the test."""

    def make(columns, clauses="USING parquet", values="", name="t"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.sql(f"CREATE TABLE {name} ({columns}) {clauses}")
        if values:
            spark.sql(f"INSERT INTO {name} VALUES {values}")
        return name

    yield make
    spark.sql("DROP TABLE IF EXISTS t")


def rows(spark, table="t"):
    return sorted(map(tuple, spark.table(table).collect()), key=repr)


def folder(spark, table="t"):
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table} AS JSON").first()[0]
    return Path(json.loads(described)["location"].removeprefix("file:"))


def read(path):
    """The rows of a table that is a folder of SCHEMA."""
    partitioning = dataset.partitioning(SCHEMA.remove(0), flavor="hive")
    table = dataset.dataset(path, SCHEMA, partitioning=partitioning).to_table()
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


# ---- overwrite


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_table_is_the_output_of_the_job_when_that_has_ended(spark, table, partitioned):
    name = table(
        "a INT, p INT", f"USING parquet {'PARTITIONED BY (p)' * partitioned}", "(1,1),(2,2)"
    )
    sink = SparkTableSink(name, "overwrite")
    committer = sink.create_committer()
    tasks = [Task(sink, subtask=n) for n in range(2)]
    for number in (1, 2):
        batches = [[(number * 10 + n, 2 + number)] for n in range(2)]
        committer.commit([c for n in range(2) for c in tasks[n].snapshot(number, batches[n])])
        assert rows(spark) == [(1, 1), (2, 2)]
    spark.sql("INSERT INTO t VALUES (3, 3)")
    committer.finish("line", "sink")
    expected = [(10, 3), (11, 3), (20, 4), (21, 4)]
    assert rows(spark) == expected
    if partitioned:
        assert [r[0] for r in spark.sql("SHOW PARTITIONS t").collect()] == ["p=3", "p=4"]
    spark.sql("INSERT INTO t VALUES (99, 3)")
    sink.create_committer().finish("line", "sink")
    assert rows(spark) == [*expected, (99, 3)]


def test_what_waits_for_the_end_of_a_job_is_not_published_by_a_fork(tmp_path):
    sinks = {m: SparkTableSink.at_path(tmp_path, SCHEMA, mode=m) for m in ("append", "overwrite")}
    assert {mode: sink.needs_all_output for mode, sink in sinks.items()} == {
        "append": False,
        "overwrite": True,
    }


def test_a_job_without_output_leaves_an_empty_table(spark, table):
    sink = SparkTableSink(table("a INT", values="(1)"), "overwrite")
    sink.create_committer().finish("line", "sink")
    assert rows(spark) == []


SCHEMA = pa.schema([("a", pa.int32()), ("p", pa.int32())])


@pytest.mark.parametrize("named", [False, True])
def test_a_crash_after_any_step_of_an_overwrite_is_made_good(spark, table, tmp_path, named):
    steps: list[str] = []

    def crash_and_repeat(step):
        if named:
            table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
            append, sink = SparkTableSink("t"), SparkTableSink("t", "overwrite")
        else:
            path, options = tmp_path / str(step), {"partition_by": ["p"]}
            append = SparkTableSink.at_path(path, SCHEMA, **options)
            sink = SparkTableSink.at_path(path, SCHEMA, mode="overwrite", **options)
        append.create_committer().commit(Task(append, "old").snapshot(1, [(1, 1), (2, 2)]))
        one = Task(sink).snapshot(1, [(5, 1), (6, 3)])
        two = Task(sink).snapshot(2, [(7, 1)])

        def job():
            committer = sink.create_committer()
            committer.commit(one)
            committer.commit([*one, *two])
            committer.finish("line", "sink")

        reached, steps[:] = crashed(step, job)
        if reached and step % 2:
            crashed(step, job)
        job()
        got = rows(spark) if named else read(path)
        assert got == [(5, 1), (6, 3), (7, 1)], f"crashed after step {step} of {steps}"

    crash_and_repeat(0)
    whole = list(steps)
    assert whole.count("replace") == 4 + 3, "the ledger four times, and three files"
    for step in range(1, len(whole) + 1):
        # With Spark only around what is asked of it; the other steps are the same.
        if not named or {"require", "add", "drop", "refresh"} & set(whole[step - 1 : step + 1]):
            crash_and_repeat(step)


def test_output_that_somebody_removed_before_the_swap_is_missed(spark, table):
    sink = SparkTableSink(table("a INT", values="(1)"), "overwrite")
    committer, task = sink.create_committer(), Task(sink)
    committer.commit(task.snapshot(1, [(2,)]))
    spark.sql("TRUNCATE TABLE t")
    with pytest.raises(JobError, match="somebody emptied the folder"):
        committer.commit(task.snapshot(2, [(3,)]))
    with pytest.raises(JobError, match="somebody emptied the folder"):
        committer.finish("line", "sink")


# ---- upsert


def word_sink(name="t", **options):
    return SparkTableSink(
        name, "upsert", keys=["word"], is_delete=lambda row: row[1] is None, **options
    )


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_the_last_record_of_each_key_is_its_row(spark, table, format):
    table("word STRING, n INT, at TIMESTAMP_NTZ, more ARRAY<INT>", f"USING {format}")
    spark.sql("INSERT INTO t VALUES ('old', 1, TIMESTAMP_NTZ'2500-01-01 00:00:00.5', array(1))")
    spark.sql("INSERT INTO t VALUES ('a', 1, null, null), (null, 0, null, null)")
    sink = word_sink()
    committer, task = sink.create_committer(), Task(sink)
    kept = ("old", 1, spark.sql("SELECT TIMESTAMP_NTZ'2500-01-01 00:00:00.5'").first()[0], [1])
    no_key = (None, 0, None, None)
    changes = [("a", 2, None, [2]), ("b", 1, None, None), ("a", 3, None, [3])]
    committer.commit(task.snapshot(1, changes[:2], changes[2:]))
    assert rows(spark) == [("a", 3, None, [3]), ("b", 1, None, None), kept, no_key]
    gone = [("a", None, None, None), ("b", 2, None, None), ("none", None, None, None)]
    committer.commit(task.snapshot(2, gone))
    assert rows(spark) == [("b", 2, None, None), kept, no_key]
    committer.commit(task.snapshot(3, [("b", None, None, None), ("b", 9, None, None)]))
    committer.commit(task.snapshot(4, [("c", 1, None, None), ("c", None, None, None)]))
    assert rows(spark) == [("b", 9, None, None), kept, no_key]
    assert len(list(folder(spark).glob("part-*"))) == 1


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_intervals_and_maps_with_struct_keys_are_read_as_written(spark, table, format):
    columns = """k INT, d INTERVAL DAY TO SECOND, h INTERVAL DAY TO HOUR, y INTERVAL YEAR TO MONTH,
        l ARRAY<INTERVAL DAY>, s STRUCT<m: INTERVAL YEAR, i: INTERVAL MINUTE>,
        w MAP<STRUCT<p: INT>, INTERVAL HOUR>"""
    table(columns, f"USING {format}")
    first = """1, interval '-1 02:03:04.5' day to second, interval '1 02' day to hour,
        interval '1-2' year to month, array(interval '3' day, null),
        named_struct('m', interval '5' year, 'i', interval '6' minute),
        map(named_struct('p', 7), interval '8' hour)"""
    spark.sql(f"INSERT INTO t SELECT {first}")
    written = (
        dt.timedelta(days=-1, hours=-2, minutes=-3, seconds=-4.5), dt.timedelta(hours=26), 14,
        [dt.timedelta(3), None], (60, dt.timedelta(minutes=6)), [((7,), dt.timedelta(hours=8))],
    )  # fmt: skip
    sink = SparkTableSink("t", "upsert", keys=["k"])
    committables = Task(sink).snapshot(1, [(2, *written), (3, *[None] * 6)])
    sink.create_committer().commit(committables)
    texts = [f"cast({name} AS STRING)" for name in "dhylsw"]
    found = {row[0]: tuple(row[1:]) for row in spark.table("t").selectExpr("k", *texts).collect()}
    assert found[1] == found[2] and None not in found[1]
    assert found[3] == (None,) * 6
    same = "d = interval '-1 02:03:04.5' day to second AND y = interval '1-2' year to month"
    assert spark.table("t").where(f"{same} AND s.m = interval '5' year").count() == 2
    with pytest.raises(GraphError, match="cannot be a key"):
        SparkTableSink("t", "upsert", keys=["y"])


def test_only_partitions_with_changes_are_rewritten(spark, table):
    clauses = "USING parquet PARTITIONED BY (p)"
    table("id BIGINT, n STRING, p STRING", clauses, "(1,'x','a'),(2,'x','a'),(1,'x','b')")
    sink = SparkTableSink("t", "upsert", keys=["p", "id"], is_delete=lambda row: row["n"] is None)
    untouched = list((folder(spark) / "p=b").glob("part-*"))
    changes = [
        {"id": 1, "n": "new", "p": "a"},
        {"id": 7, "n": "new", "p": "c/d"},
        {"id": 2, "n": None, "p": "a"},
        {"id": 3, "n": None, "p": "z"},
    ]
    committables = Task(sink).snapshot(1, changes)
    sink.create_committer().commit(committables)
    sink.create_committer().commit(committables)
    assert rows(spark) == [(1, "new", "a"), (1, "x", "b"), (7, "new", "c/d")]
    assert list((folder(spark) / "p=b").glob("part-*")) == untouched
    sink.create_committer().commit(Task(sink).snapshot(2, [{"id": 7, "n": None, "p": "c/d"}]))
    assert rows(spark) == [(1, "new", "a"), (1, "x", "b")]


def test_a_crash_after_any_step_of_an_upsert_is_made_good(tmp_path):
    append = SparkTableSink.at_path(tmp_path, SCHEMA)
    append.create_committer().commit(Task(append, "old").snapshot(1, [(-1, 0), (0, 0)]))
    sink = SparkTableSink.at_path(
        tmp_path, SCHEMA, mode="upsert", keys=["a"], is_delete=lambda row: row[1] is None
    )
    expected = {-1: 0, 0: 0}
    for step in range(1, 100):
        first = Task(sink, attempt=step).snapshot(2 * step, [(0, step), (step, 1)])
        second = Task(sink, attempt=step).snapshot(2 * step + 1, [(step - 2, None)])
        expected |= {0: step, step: 1}
        if step != 2:
            expected.pop(step - 2, None)
        else:
            expected.pop(0)

        def job(first=first, second=second):
            committer = sink.create_committer()
            committer.commit(first)
            committer.commit([*first, *second])

        reached, steps = crashed(step, job)
        if reached and step % 2:
            crashed(step, job)
        job()
        assert read(tmp_path) == sorted(expected.items(), key=repr), f"crashed after step {step}"
        if not reached:
            break
    assert "unlink" in steps and "replace" in steps


def test_another_job_first_ends_what_a_dead_one_has_begun(tmp_path):
    def upsert(path):
        return SparkTableSink.at_path(path, SCHEMA, mode="upsert", keys=["a"])

    for step in range(1, 100):
        path = tmp_path / str(step)
        append = SparkTableSink.at_path(path, SCHEMA)
        append.create_committer().commit(Task(append, "old").snapshot(1, [(1, 1), (2, 2)]))
        one, two = upsert(path), upsert(path)
        first = Task(one, lineage="one").snapshot(1, [(1, 100)])
        reached, steps = crashed(step, partial(one.create_committer().commit, first))
        two.create_committer().commit(Task(two, lineage="two").snapshot(1, [(2, 222), (3, 333)]))
        more = Task(append, "more").snapshot(1, [(9, step)])
        append.create_committer().commit(more)
        one.create_committer().commit(first)
        assert read(path) == [(1, 100), (2, 222), (3, 333), (9, step)], f"{step} of {steps}"
        if not reached:
            break


def test_the_catalog_hears_of_what_a_dead_job_has_begun(spark, table, tmp_path, monkeypatch):
    clauses = f"USING parquet PARTITIONED BY (p) LOCATION '{tmp_path}'"

    def dies(*_):
        raise Crash

    def begun(lineage, record):
        sink = SparkTableSink("t", "upsert", keys=["a", "p"])
        committables = Task(sink, lineage=lineage).snapshot(1, [record])
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Catalog, "add", dies)
            sink.create_committer().commit(committables)
        return sink, committables

    table("a INT, p INT", clauses, "(1, 1)")
    begun("one", (2, 2))
    append = SparkTableSink("t")
    append.create_committer().commit(Task(append).snapshot(1, [(3, 1)]))
    assert rows(spark) == [(1, 1), (2, 2), (3, 1)]

    dead, committables = begun("two", (4, 4))
    unnamed = SparkTableSink.at_path(tmp_path, SCHEMA, partition_by=["p"])
    with pytest.raises(JobError, match="write to the table by its name"):
        unnamed.create_committer().commit(Task(unnamed).snapshot(1, [(5, 5)]))
    table("a BIGINT, p INT", clauses)
    append = SparkTableSink("t")
    append.create_committer().commit(Task(append, "new").snapshot(1, [(6, 6)]))
    assert rows(spark) == [(6, 6)]
    with pytest.raises(JobError, match="is not the table"):
        dead.create_committer().commit(committables)


def test_two_subtasks_that_change_one_key_are_told_apart(spark, table):
    table("word STRING, n INT")
    sink = word_sink()
    tasks = [Task(sink, subtask=n) for n in range(2)]
    both = [c for task in tasks for c in task.snapshot(1, [("a", task.context.subtask)])]
    with pytest.raises(JobError, match=r"key the stream by \['word'\].*or start the job afresh"):
        sink.create_committer().commit(both)
    later = tasks[1].snapshot(2, [("b", 2)])
    sink.create_committer().commit([both[0], *later])
    assert rows(spark) == [("a", 0), ("b", 2)]


def test_what_cannot_be_upserted_is_refused(spark, table):
    table("word STRING, n INT, f DOUBLE, p INT", "USING parquet PARTITIONED BY (p)")
    for keys, words in [
        (["word"], "is partitioned by 'p', which is not one of the keys"),
        (["f", "p"], "cannot be a key"),
        (["z", "p"], "is no column"),
    ]:
        with pytest.raises(GraphError, match=words):
            SparkTableSink("t", "upsert", keys=keys)
    sink = SparkTableSink("t", "upsert", keys="p", is_delete=lambda row: row[0] is None)
    task = Task(sink)
    with pytest.raises(JobError, match="column 'p': it is None"):
        task.write([("a", 1, 1.0, None)])
    with pytest.raises(JobError, match="column 'p': its type is str"):
        task.write([("a", 1, 1.0, 1), (None, 1, 1.0, "1")])


def test_a_folder_can_be_upserted_without_spark(tmp_path):
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    sink = SparkTableSink.at_path(tmp_path, schema, mode="upsert", keys=["k"])
    committer, task = sink.create_committer(), Task(sink)
    for number in range(1, 4):
        committer.commit(task.snapshot(number, [(i, f"{number}") for i in range(number, 5)]))
    [path] = tmp_path.glob("part-*")
    got = pq.read_table(path).to_pylist()
    assert sorted((r["k"], r["v"]) for r in got) == [(1, "1"), (2, "2"), (3, "3"), (4, "3")]


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_partition_that_no_folder_can_be_named_for_is_refused_with_the_record(tmp_path, mode):
    schema = pa.schema([("k", pa.int64()), ("p", pa.string())])
    options = {"keys": ["k", "p"], "is_delete": lambda row: row[0] == 2}
    sink = SparkTableSink.at_path(
        tmp_path, schema, partition_by=["p"], mode=mode, **options if mode == "upsert" else {}
    )
    committer, task = sink.create_committer(), Task(sink)
    for text in ("", "x" * 254, "/" * 85, "é" * 127, "a\0b"):
        for wrong in ((1, text), (2, text)):
            for batch in ([wrong], [(0, "fine"), wrong, (1, "fine")]):
                with pytest.raises(JobError, match="the partition column 'p'") as caught:
                    task.write(batch)
                assert caught.value.record == repr(wrong)
    longest = ["x" * 253, "/" * 84, "é" * 126]
    committer.commit(task.snapshot(1, [(5, text) for text in longest]))
    committer.finish("line", "sink")
    assert len(list(tmp_path.glob("p=*"))) == 3


def test_changes_that_were_staged_before_a_column_was_added_are_published(tmp_path):
    def upsert(schema):
        return SparkTableSink.at_path(tmp_path, schema, mode="upsert", keys=["a"])

    committables = Task(upsert(SCHEMA)).snapshot(1, [(1, 2)])
    wider = upsert(SCHEMA.append(pa.field("more", pa.string())))
    committables += Task(wider, subtask=1).snapshot(1, [(2, 3, "x")])
    wider.create_committer().commit(committables)
    [path] = tmp_path.glob("part-*")
    assert [tuple(row.values()) for row in pq.read_table(path).to_pylist()] == [
        (1, 2, None),
        (2, 3, "x"),
    ]


# ---- rows of other writers


def upserted(path, schema, files, record):
    """The rows of a folder of files after one record was upserted by its first column."""
    path.mkdir()
    for count, file in enumerate(files):
        pq.write_table(file, path / f"part-{count}.parquet")
    sink = SparkTableSink.at_path(path, schema, mode="upsert", keys=[schema.names[0]])
    sink.create_committer().commit(Task(sink).snapshot(1, [record]))
    [path] = path.glob("part-*")
    return pq.read_table(path).to_pylist()


def test_columns_of_other_cases_keep_their_values(tmp_path):
    old = pa.struct([("Y", pa.int32()), ("x", pa.list_(pa.struct([("Z", pa.string())])))])
    new = pa.struct([("X", pa.list_(pa.struct([("z", pa.string())]))), ("y", pa.int64())])
    schema = pa.schema([("Id", pa.int64()), ("s", new), ("M", pa.map_(pa.string(), new))])
    value = {"Y": 1, "x": [{"Z": "z"}, None]}
    columns = {
        "id": [1, 2],
        "S": pa.array([value, None], old),
        "m": pa.array([[("k", value)], [("k", None)]], pa.map_(pa.string(), old)),
    }
    kept = {"X": [{"z": "z"}, None], "y": 1}
    files = [pa.table(columns), pa.table({"ID": [3], "Id": [4], "s": pa.nulls(1, new)})]
    got = upserted(tmp_path / "one", schema, files, (2, None, None))
    assert sorted(got, key=lambda row: row["Id"]) == [
        {"Id": 1, "s": kept, "M": [("k", kept)]},
        {"Id": 2, "s": None, "M": None},
        {"Id": 4, "s": None, "M": None},
    ]
    with pytest.raises(JobError, match=r"it has the columns \['ID', 'id'\]"):
        upserted(tmp_path / "two", schema, [pa.table({"ID": [3], "id": [4]})], (2, None, None))


@pytest.mark.parametrize(
    ("marks", "kind", "refused", "fine"),
    [
        ({"version": "3.5.0", "legacyDateTime": ""}, pa.date32(), "1582-10-14", "1582-10-15"),
        ({"version": "2.4.8"}, pa.timestamp("us", "UTC"), "1899-12-31", "1900-01-01"),
        ({"version": "2.4.8"}, pa.list_(pa.date32()), ["2000-01-01"], None),
        ({"version": "4.0.0"}, pa.date32(), None, "1000-01-01"),
        ({}, pa.timestamp("us", "UTC"), None, "1000-01-01"),
    ],
    ids=str,
)
def test_old_times_of_the_old_calendar_are_refused(tmp_path, marks, kind, refused, fine):
    schema = pa.schema([("id", pa.int64()), ("d", kind)])

    def file(text):
        leaf = kind.value_type if pa.types.is_list(kind) else kind
        texts = text if isinstance(text, list) else [text]
        values = pa.array(texts, pa.string()).cast(pa.timestamp("us")).cast(leaf)
        if isinstance(text, list):
            values = pa.ListArray.from_arrays([0, 1], values)
        table = pa.table({"id": [1], "d": values})
        return table.replace_schema_metadata({f"org.apache.spark.{k}": marks[k] for k in marks})

    record = (2, None)
    if fine is not None:
        kept = file(fine)["d"].to_pylist()
        got = upserted(tmp_path / "fine", schema, [file(fine)], record)
        assert [row["d"] for row in got if row["id"] == 1] == kept
    if refused is not None:
        with pytest.raises(JobError, match=r"part-0\.parquet cannot be rewritten.*=CORRECTED"):
            upserted(tmp_path / "refused", schema, [file(refused)], record)


def test_old_days_in_orc_stay_as_they_are(spark, table):
    table("id INT, d DATE", "USING orc", "(1, DATE'1000-01-01'), (2, DATE'2000-01-01')")
    sink = SparkTableSink("t", "upsert", keys=["id"])
    sink.create_committer().commit(Task(sink).snapshot(1, [(2, dt.date(1582, 10, 15))]))
    assert rows(spark) == [(1, dt.date(1000, 1, 1)), (2, dt.date(1582, 10, 15))]
