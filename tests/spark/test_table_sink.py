"""`SparkTableSink` that appends: what Spark reads back, crashes, refusals."""

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock.connectors.lake.table import partition_folder
from penstock.connectors.spark.sink.catalog import Catalog
from penstock.connectors.spark.sink.table_sink import SparkTableSink
from penstock.dataflow.errors import GraphError, JobError
from tests.spark.sink_tasks import Task, crashed

UTC = dt.UTC


@pytest.fixture
def table(spark, request):
    """Makes tables that are dropped after the test."""
    names = []

    def make(columns, clauses="USING parquet", name="t"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.sql(f"CREATE TABLE {name} ({columns}) {clauses}")
        names.append(name)
        return name

    yield make
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def rows(spark, table):
    return sorted(map(tuple, spark.table(table).collect()), key=repr)


def location(spark, table):
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {table} AS JSON").first()[0]
    return Path(json.loads(described)["location"].removeprefix("file:"))


COLUMNS = """b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INT, i8 BIGINT, f4 FLOAT, f8 DOUBLE, s STRING,
    v VARCHAR(3), c CHAR(3), x BINARY, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, m DECIMAL(10,2),
    big DECIMAL(38,6), a ARRAY<INT>, k MAP<STRING,ARRAY<BIGINT>>, r STRUCT<p:INT,q:STRING>"""
FULL = (
    True, -128, -32768, -(2**31), 2**63 - 1, 1.5, 0.1, "é\u2028\0", "abc", "a", b"\0\xff",
    dt.date(1, 1, 1), dt.datetime(1582, 1, 1, 12, 30, 1, 7, tzinfo=UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999), Decimal("-99999999.99"),
    Decimal("12345678901234567890123456789012.123456"), [1, None, 3], {"k": [1], "l": None},
    (1, None),
)  # fmt: skip
NAMES = re.findall(r"(\w+) [A-Z]", COLUMNS)
EMPTY = (None,) * len(FULL)


EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_spark_reads_each_type_as_it_was_written(spark, table, format):
    columns, full = COLUMNS, dict(zip(NAMES, FULL, strict=True))
    micros = (full["t"] - EPOCH) // dt.timedelta(microseconds=1)
    shown = "unix_micros(t)"
    if format == "orc":  # has no instants
        columns = COLUMNS.replace("t TIMESTAMP,", "t BIGINT,")
        full |= {"t": micros, "d": dt.date(1582, 10, 15)}
        shown = "t"
    name = table(columns, f"USING {format}")
    sink = SparkTableSink(name)
    sink.create_committer().commit(Task(sink).snapshot(1, [full, EMPTY]))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        read = spark.table(name).selectExpr("*", f"{shown} micros", "cast(n AS STRING) clock")
        got, empty = sorted(read.collect(), key=lambda row: row.b is None)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert tuple(empty) == (None,) * (len(FULL) + 2)
    expected = full | {"c": "a  "}
    for column in set(expected) - {"t", "n"}:
        assert got[column] == expected[column], column
    assert got.micros == micros
    assert got.clock == "9999-12-31 23:59:59.999999"


def test_rows_are_seen_after_the_commit_and_not_before(spark, table):
    name = table("a INT, s STRING")
    sink = SparkTableSink(name)
    committables = Task(sink).snapshot(1, [(1, "x")], [(2, None)])
    assert rows(spark, name) == []
    sink.create_committer().commit(committables)
    assert rows(spark, name) == [(1, "x"), (2, None)]
    assert [p.name for p in (location(spark, name) / "_staging").glob("*-*")] == []


PARTITIONED = "a INT, p INT, q STRING, d DATE, o BOOLEAN"
BY = "PARTITIONED BY (p, q, d, o)"
DAY = dt.date(2024, 2, 29)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_partitions_are_known_to_the_catalog(spark, table, format):
    name = table(PARTITIONED, f"USING {format} {BY}")
    sink = SparkTableSink(name)
    records = [
        (1, 1, "a", DAY, True),
        (2, -1, "a/b=c %d'\\\" é", DAY, False),
        (3, None, None, None, None),
        (4, 1, "a", DAY, True),
        {"a": 5, "p": 2, "q": "".join(map(chr, range(1, 128))), "d": dt.date(1, 1, 1), "o": True},
    ]
    committer = sink.create_committer()
    committer.commit(Task(sink).snapshot(1, records[:2], records[2:]))
    committer.commit(Task(sink).snapshot(2, [(6, 1, "a", DAY, True)]))
    expected = [*records[:4], tuple(records[4].values()), (6, 1, "a", DAY, True)]
    assert rows(spark, name) == sorted(expected, key=repr)
    assert spark.sql(f"SHOW PARTITIONS {name}").count() == 4
    assert spark.table(name).where("q = 'a' AND p = 1").count() == 3


def test_spark_names_partition_folders_in_the_same_way(spark, table):
    name = table(PARTITIONED, f"USING parquet {BY}")
    texts = (
        [chr(code) for code in (*range(1, 48, 3), 127, 128)]
        + list("\"#%&'()*+,-./:;<=>?@[\\]^_`{|}~")
        + ["a b", "x=y", "\u20ac"]
    )
    schema = "a INT, p INT, q STRING, d DATE, o BOOLEAN"
    frame = spark.createDataFrame([(1, 1, text, DAY, True) for text in texts], schema)
    frame.coalesce(1).write.insertInto(name)
    written = {
        str(path.parent.relative_to(location(spark, name)))
        for path in location(spark, name).rglob("*.parquet")
    }
    assert written == {partition_folder("pqdo", (1, text, DAY, True)) for text in texts}


def test_a_crash_after_any_step_of_a_commit_loses_and_doubles_nothing(spark, table):
    name = table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
    sink = SparkTableSink(name)
    expected = []
    for step in range(1, 100):
        batch = [(step * 10, 1), (step * 10 + 1, 1000 + step)]
        committables = Task(sink, attempt=step).snapshot(step, batch)
        committables += Task(sink, subtask=1, attempt=step).snapshot(step, [(-step, 1)])
        expected += [*batch, (-step, 1)]
        reached, steps = crashed(step, lambda c=committables: sink.create_committer().commit(c))
        if reached and step % 2:
            # Whoever comes next may crash at the same place.
            crashed(step, lambda c=committables: sink.create_committer().commit(c))
        sink.create_committer().commit(committables)
        assert rows(spark, name) == sorted(expected, key=repr), f"crashed after step {step}"
        if not reached:
            break
    order = [kind for n, kind in enumerate(steps) if kind not in steps[:n] and kind != "fsync"]
    assert order == ["require", "hardlink_to", "add", "refresh", "replace", "unlink"]


def test_what_was_compacted_after_its_commit_does_not_come_back(spark, table):
    name = table("a INT")
    sink = SparkTableSink(name)
    committables = Task(sink).snapshot(3, [(1,)])
    sink.create_committer().commit(committables)
    sink.create_committer().files.target(committables[0]).unlink()
    sink.create_committer().commit(committables)
    assert rows(spark, name) == []
    late = Task(sink).snapshot(4, [(2,)])
    sink.create_committer().files.staged(late[0]).unlink()
    with pytest.raises(JobError, match="output of snapshot 4 is lost"):
        sink.create_committer().commit(late)


def test_two_sinks_and_two_jobs_share_a_table(spark, table):
    name = table("a INT")
    sink = SparkTableSink(name)
    tasks = [Task(sink), Task(sink, uid="other"), Task(sink, lineage="fork")]
    for number in (1, 2):
        for task in tasks:
            sink.create_committer().commit(task.snapshot(number, [(number,)]))
    assert rows(spark, name) == [(1,)] * 3 + [(2,)] * 3


def test_dates_that_orc_files_tell_otherwise_are_refused(spark, table):
    sink = SparkTableSink(table("d DATE", "USING orc"))
    with pytest.raises(JobError, match="1582-10-14 is before 1582-10-15"):
        Task(sink).write([(dt.date(1582, 10, 14),)])
    table("a ARRAY<DATE>", "USING orc")
    with pytest.raises(GraphError, match="no times and dates in nested types"):
        SparkTableSink("t")


def test_a_location_may_have_odd_names(spark, table, tmp_path):
    odd = tmp_path / "a b%20c#d"
    name = table("a INT, q STRING", f"USING parquet PARTITIONED BY (q) LOCATION '{odd}'")
    sink = SparkTableSink(name)
    for number in (1, 2):
        sink.create_committer().commit(Task(sink).snapshot(number, [(number, "x/y %")]))
    assert rows(spark, name) == [(1, "x/y %"), (2, "x/y %")]


def test_many_partitions_are_written_with_few_open_files(spark, table, monkeypatch):
    monkeypatch.setattr("penstock.connectors.lake.writers._GATHERED_BYTES", 1000)
    monkeypatch.setattr("penstock.connectors.lake.writers._OPEN_FILES", 3)
    monkeypatch.setattr("penstock.connectors.lake.writers._TOGETHER", 40)
    name = table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
    sink = SparkTableSink(name)
    batches = [[(i * 40 + j, j) for j in range(40)] for i in range(20)]
    committables = Task(sink).snapshot(1, *batches)
    assert len(committables) > 40
    sink.create_committer().commit(committables)
    assert rows(spark, name) == sorted((r for batch in batches for r in batch), key=repr)


def test_output_for_a_table_that_was_replaced_is_not_published(spark, table, tmp_path):
    where = f"USING parquet LOCATION '{tmp_path / 'x'}'"
    name = table("a INT, b INT", where)
    sink = SparkTableSink(name)
    task = Task(sink)
    first, second, third = (task.snapshot(n, [(n, n)]) for n in (1, 2, 3))
    committer = sink.create_committer()
    for columns, place, words in [
        ("a INT, b STRING", where, "its column 'b' has another type"),
        ("a INT", where, "its column 'b' is gone"),
        ("a INT, b INT", "USING parquet", "its location: "),
        ("a INT, b INT", f"USING orc LOCATION '{tmp_path / 'x'}'", "its format: "),
        ("a INT, b INT", f"{where} PARTITIONED BY (b)", "its partition columns: "),
    ]:
        table(columns, place)
        with pytest.raises(JobError, match=words):
            committer.commit(first)
    spark.sql(f"DROP TABLE {name}")
    with pytest.raises(JobError, match="TABLE_OR_VIEW_NOT_FOUND"):
        committer.commit(first)
    table("a INT, b INT", where)
    committer.commit(first)
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (c INT)")
    committer.commit(second)
    committer.commit(third)
    assert rows(spark, name) == [(1, 1, None), (2, 2, None), (3, 3, None)]


def test_a_partition_that_lies_elsewhere_is_refused(spark, table, tmp_path):
    name = table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION (p=1) LOCATION '{tmp_path}'")
    sink = SparkTableSink(name)
    committables = Task(sink).snapshot(1, [(1, 1)])
    with pytest.raises(JobError, match="has a location of its own"):
        sink.create_committer().commit(committables)
    spark.sql(f"ALTER TABLE {name} DROP PARTITION (p=1)")
    sink.create_committer().commit(committables)
    assert rows(spark, name) == [(1, 1)]


@pytest.mark.parametrize("one_by_one", [0, 20])
def test_a_partition_that_was_dropped_is_made_known_again(spark, table, monkeypatch, one_by_one):
    monkeypatch.setattr(Catalog, "_ONE_BY_ONE", one_by_one)
    name = table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
    sink = SparkTableSink(name)
    committer, task = sink.create_committer(), Task(sink)
    committer.commit(task.snapshot(1, [(1, 1), (2, None)]))
    for partition in ("p=1", "p=NULL"):
        spark.sql(f"ALTER TABLE {name} DROP PARTITION ({partition})")
    committer.commit(task.snapshot(2, [(3, 1), (4, None)]))
    assert rows(spark, name) == [(3, 1), (4, None)]
    spark.sql(f"INSERT OVERWRITE {name} PARTITION (p=2) VALUES (5)")
    committer.commit(task.snapshot(3, [(6, 1)]))
    assert rows(spark, name) == [(3, 1), (4, None), (5, 2), (6, 1)]


def test_a_partition_that_was_moved_while_the_job_runs_is_refused(spark, table, tmp_path):
    name = table("a INT, p INT", "USING parquet PARTITIONED BY (p)")
    sink = SparkTableSink(name)
    committer, task = sink.create_committer(), Task(sink)
    committer.commit(task.snapshot(1, [(1, 1)]))
    spark.sql(f"ALTER TABLE {name} PARTITION (p=1) SET LOCATION '{tmp_path}'")
    with pytest.raises(JobError, match="has a location of its own"):
        committer.commit(task.snapshot(2, [(2, 1)]))


def test_tables_that_cannot_be_written_exactly_once_are_refused_with_the_reason(spark, table):
    table("a INT", "USING parquet CLUSTERED BY (a) INTO 2 BUCKETS", "bucketed")
    table("a INT", "USING csv", "csv")
    table("a INT, p DOUBLE", "USING parquet PARTITIONED BY (p)", "doubles")
    table("a INT, _p INT", "USING parquet PARTITIONED BY (_p)", "hidden")
    table("a TIMESTAMP", "USING orc", "instants")
    table("a VARIANT", "USING parquet", "variants")
    table("a INT, p INTERVAL MONTH", "USING parquet PARTITIONED BY (p)", "months")
    spark.sql("CREATE OR REPLACE TEMP VIEW shown AS SELECT 1 AS a")
    for name, words in [
        ("bucketed", "it is bucketed"),
        ("csv", "it is USING csv"),
        ("shown", "it is a view"),
        ("doubles", "partitioned by 'p' of type double"),
        ("hidden", "hidden folders"),
        ("variants", "column 'a': .* cannot write the type variant"),
        ("months", "partitioned by 'p' of type int32"),
        ("instants", "use TIMESTAMP_NTZ"),
        ("nothing", "finds no table 'nothing'"),
    ]:
        with pytest.raises(GraphError, match=words):
            SparkTableSink(name)
    table("a INT", name="plain")
    for options, words in [
        ({"mode": "merge"}, "append, overwrite or upsert"),
        ({"keys": ["a"]}, "are for mode='upsert'"),
        ({"mode": "upsert"}, "needs keys"),
        ({"mode": "upsert", "keys": ["b"]}, "is no column"),
    ]:
        with pytest.raises(GraphError, match=words):
            SparkTableSink("plain", **options)


class Remote:
    """As a session of Spark Connect: the same, but without a JVM that could be reached."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        if name in ("sparkContext", "_jsparkSession", "_jvm", "_sc"):
            raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")
        return getattr(self._session, name)


def test_a_session_of_spark_connect_is_refused(spark, table):
    name = table("a INT")
    with pytest.raises(GraphError, match=r"Spark Connect.*Take a session of this process"):
        SparkTableSink(name, spark=Remote(spark))
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    try:
        with pytest.raises(GraphError, match=r"Spark Connect.*Iceberg table iceberg_catalog="):
            SparkTableSink("lake.db.t", spark=Remote(spark))
    finally:
        spark.conf.unset("spark.sql.catalog.lake")


def test_a_folder_without_links_is_refused(spark, table, monkeypatch):
    sink = SparkTableSink(table("a INT"))
    sink.validate()

    def no_links(self, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    with pytest.raises(GraphError, match="must have hard links"):
        sink.validate()


def test_a_folder_is_a_table_without_spark(spark, tmp_path):
    schema = StructType([StructField("a", IntegerType(), False), StructField("p", StringType())])
    path = tmp_path / "deep" / "table"
    sink = SparkTableSink.at_path(path, schema, partition_by=["p"])
    sink.validate()
    committables = Task(sink).snapshot(1, [(1, "x"), (2, "y")])
    sink.create_committer().commit(committables)
    sink.create_committer().commit(committables)
    assert sorted(map(tuple, spark.read.parquet(str(path)).collect())) == [(1, "x"), (2, "y")]
    with pytest.raises(JobError, match="column 'a': it is None, and the column is NOT NULL"):
        Task(sink).write([(None, "x")])
    with pytest.raises(GraphError, match="only the local file system"):
        SparkTableSink.at_path("s3://bucket/x", schema)
    with pytest.raises(GraphError, match="is not in the schema"):
        SparkTableSink.at_path(path, schema, partition_by=["z"])
    with pytest.raises(GraphError, match="parquet or orc"):
        SparkTableSink.at_path(path, schema, format="csv")
    for kind in (pa.duration("us"), pa.list_(pa.struct([("x", pa.duration("us"))]))):
        with pytest.raises(GraphError, match="is an interval or has one in it"):
            SparkTableSink.at_path(path, pa.schema([("a", kind)]))


def test_insert_overwrite_of_the_table_loses_staged_output_with_an_error(spark, table):
    name = table("a INT")
    sink = SparkTableSink(name)
    committables = Task(sink).snapshot(1, [(1,)])
    spark.sql(f"INSERT OVERWRITE {name} VALUES (7)")
    try:
        sink.create_committer().commit(committables)
    except JobError as error:
        assert "output of snapshot 1 is lost" in str(error)
        assert rows(spark, name) == [(7,)]
    else:  # Spark left the staging folder alone
        assert rows(spark, name) == [(1,), (7,)]


@pytest.mark.parametrize(("slices", "at_once"), [([1] * 20, 8), ([300] * 20, 2100), ([5000], 5000)])
def test_records_are_gathered_and_all_of_them_are_in_the_snapshot(tmp_path, slices, at_once):
    sink = SparkTableSink.at_path(tmp_path, pa.schema([("a", pa.int64())]))
    task, numbers = Task(sink), iter(range(10**6))
    staged = []
    task.writer._stage = lambda batch, real=task.writer._stage: (
        staged.append(len(batch)),
        real(batch),
    )
    committables = task.snapshot(1, *([(next(numbers),) for _ in range(n)] for n in slices))
    assert max(staged) == at_once and sum(staged) == sum(slices)
    sink.create_committer().commit(committables)
    [path] = tmp_path.glob("part-*")
    assert pq.read_table(path)["a"].to_pylist() == list(range(sum(slices)))


def test_a_record_that_waits_is_refused_at_the_snapshot_at_the_latest(tmp_path):
    sink = SparkTableSink.at_path(tmp_path, pa.schema([("a", pa.int64())]))
    task = Task(sink)
    task.writer.write([(1,), ("one",)])
    with pytest.raises(JobError, match="column 'a'") as caught:
        task.writer.prepare(1)
    assert caught.value.record == repr(("one",))


def test_a_closed_writer_leaves_no_staged_file(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.connectors.lake.data_file._ROW_GROUP_BYTES", 1)
    sink = SparkTableSink.at_path(tmp_path, pa.schema([("a", pa.int64())]))
    task = Task(sink)
    kept = task.snapshot(1, [(1,)])
    task.write([(2,)])
    assert task.writer.prepare(2) is not None  # the attempt ends before this function is called
    task.write([(3,)])
    assert len(list((tmp_path / "_staging").iterdir())) == 3
    task.writer.close()
    assert [p.name for p in (tmp_path / "_staging").iterdir()] == [kept[0].payload["staged"]]
    committer = sink.create_committer()
    assert committer.clean("line", "sink", 2, keep=[kept[0].payload["staged"]]) == 0
    assert committer.clean("line", "sink", 2) == 1
