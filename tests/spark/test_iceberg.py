"""`SparkTableSink` with Iceberg tables in a catalog of SQLite, through pyiceberg; no JVM in it."""

import datetime as dt
import json
import os
import shutil
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, NestedField, StringType

from penstock.connectors.lake.iceberg_log import IcebergLog
from penstock.connectors.lake.iceberg_settings import checked_settings
from penstock.connectors.spark.sink.iceberg_catalog import from_spark
from penstock.connectors.spark.sink.table_sink import SparkTableSink
from penstock.dataflow.errors import GraphError, JobError
from tests.spark import lake_jobs
from tests.spark.lake_commits import (
    commit_two_beside_another,
    crash_after_each_step,
    interleaved,
    keyed,
)
from tests.spark.sink_tasks import Task

UTC = dt.UTC
AP = Schema(NestedField(1, "a", LongType(), required=True), NestedField(2, "p", StringType()))


class Lake:
    """A catalog in a folder, and sinks for its tables."""

    def __init__(self, folder):
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self.catalog = load_catalog("lake", **self.properties)
        self.catalog.create_namespace_if_not_exists("db")

    def create(self, name="t", schema=AP, by=(), **properties):
        """A new table, partitioned by fields that are (column, transform)."""
        table = self.catalog.create_table(f"db.{name}", schema, properties=properties)
        with table.update_spec() as spec:
            for column, transform in by:
                spec.add_field(column, parse_transform(transform), f"{column}_{len(transform)}")
        return self.table(name)

    def table(self, name="t"):
        return self.catalog.load_table(f"db.{name}")

    def sink(self, name="t", mode="append", **options):
        return SparkTableSink(f"lake.db.{name}", mode, iceberg_catalog=self.properties, **options)

    def rows(self, name="t", condition="true"):
        table = self.table(name)
        scan = table.scan() if condition == "true" else table.scan(condition)
        return sorted((tuple(row.values()) for row in scan.to_arrow().to_pylist()), key=repr)


@pytest.fixture
def lake(tmp_path):
    made = Lake(tmp_path)
    with closing(made.catalog):
        yield made


FULL = {
    "b": (pa.bool_(), True),
    "i4": (pa.int32(), -(2**31)),
    "i8": (pa.int64(), 2**63 - 1),
    "f4": (pa.float32(), 1.5),
    "f8": (pa.float64(), 0.1),
    "s": (pa.string(), "é\u2028\0"),
    "x": (pa.binary(), b"\0\xff"),
    "d": (pa.date32(), dt.date(1, 1, 1)),
    "t": (pa.timestamp("us", "UTC"), dt.datetime(1582, 1, 1, 12, 30, 1, 7, tzinfo=UTC)),
    "n": (pa.timestamp("us"), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "m": (pa.decimal128(10, 2), Decimal("-99999999.99")),
    "big": (pa.decimal128(38, 6), Decimal("12345678901234567890123456789012.123456")),
    "a": (pa.list_(pa.int32()), [1, None, 3]),
    "r": (pa.struct([("p", pa.int32()), ("q", pa.string())]), {"p": 1, "q": None}),
    "k": (pa.map_(pa.string(), pa.list_(pa.int64())), {"k": [1], "l": None}),
}


def test_each_type_is_read_as_it_was_written_and_is_found_by_the_statistics(lake):
    lake.create(schema=pa.schema([(name, kind) for name, (kind, _) in FULL.items()]))
    sink = lake.sink()
    sink.validate()
    full = tuple(value for _, value in FULL.values())
    committables = Task(sink).snapshot(1, [full, (None,) * len(full)])
    assert lake.rows() == []
    sink.create_committer().commit(committables)
    read = (*full[:-1], list(full[-1].items()))
    assert lake.rows() == sorted([read, (None,) * len(full)], key=repr)
    for condition in [
        "i8 > 5",
        "s > 'a'",
        "d < '1000-01-01'",
        "t = '1582-01-01T12:30:01.000007+00:00'",
        "n > '9999-12-31T23:59:59'",
        "m = -99999999.99",
        "big > 1.000000",
    ]:
        assert lake.rows(condition=condition) == [read], condition
    (task,) = lake.table().scan().plan_files()
    ids = {field.name: field.field_id for field in lake.table().schema().fields}
    assert task.file.record_count == 2
    assert task.file.null_value_counts[ids["m"]] == 1
    assert set(task.file.lower_bounds) >= set(ids.values()) - {ids["a"], ids["r"], ids["k"]}


PARTS = pa.schema(
    [("a", pa.int64()), ("p", pa.string()), ("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))]
)
RECORDS = [
    (1, "x/y %é", dt.date(2024, 2, 29), dt.datetime(1969, 12, 31, 23, tzinfo=UTC)),
    (2, "", dt.date(1960, 1, 1), dt.datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (3, None, None, None),
    (None, "__HIVE_DEFAULT_PARTITION__", None, None),
    (-17, "x/y %é", dt.date(1969, 12, 31), dt.datetime(1969, 12, 31, 22, tzinfo=UTC)),
]


@pytest.mark.parametrize(
    "by",
    [
        [("p", "identity"), ("t", "day"), ("a", "bucket[4]"), ("d", "month")],
        [("p", "truncate[2]"), ("t", "hour"), ("a", "truncate[10]"), ("d", "identity")],
        [("p", "bucket[3]"), ("t", "year"), ("a", "identity"), ("d", "bucket[5]")],
        [("t", "bucket[7]"), ("d", "day"), ("t", "month")],
        [("d", "year")],
    ],
    ids=str,
)
def test_rows_lie_in_the_partitions_that_iceberg_gives_them(lake, by):
    def partitions(name):
        scan = lake.table(name).scan()
        return sorted((str(t.file.partition), t.file.record_count) for t in scan.plan_files())

    if len({column for column, _ in by}) == len(by):  # pyiceberg itself can't write others
        lake.create("own", PARTS, by).append(
            pa.Table.from_pylist(
                [dict(zip(PARTS.names, row, strict=True)) for row in RECORDS], PARTS
            )
        )
    lake.create("t", PARTS, by)
    sink = lake.sink()
    sink.create_committer().commit(Task(sink).snapshot(1, RECORDS[:2], RECORDS[2:]))
    assert lake.rows() == sorted(RECORDS, key=repr)
    if lake.catalog.table_exists("db.own"):
        assert partitions("t") == partitions("own")
    for condition, found in [
        ("p = 'x/y %é'", {1, -17}),
        ("p is null", {3}),
        ("t < '1970-01-01T00:00:00+00:00'", {1, -17}),
        ("d = '1960-01-01'", {2}),
        ("a = -17", {-17}),
    ]:
        assert {row[0] for row in lake.rows(condition=condition)} == found, condition


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_crash_after_any_step_loses_and_doubles_nothing(lake, monkeypatch, mode):
    def table(step):
        name = f"t{step}"
        lake.create(name).append(pa.table({"a": [0, 1], "p": ["x", "x"]}, AP.as_arrow()))
        return lake.sink(name, **keyed(mode)), lambda: lake.rows(name)

    done = crash_after_each_step(monkeypatch, mode, [(SqlCatalog, "commit_table")], table)
    assert done.count("commit_table") == (1 if mode == "overwrite" else 2)


def test_what_the_table_has_is_not_published_again_when_its_snapshots_are_gone(lake):
    lake.create()
    sink = lake.sink()
    task = Task(sink)
    first, second = (task.snapshot(n, [(n, "x")]) for n in (1, 2))

    def commit_without_the_ledger(committables):
        shutil.rmtree(sink.table.location / "_staging", ignore_errors=True)
        sink.create_committer().commit(committables)

    sink.create_committer().commit(first)
    table = lake.table()
    (record,) = [key for key in table.properties if key.startswith("penstock.")]
    summary = table.current_snapshot().summary.additional_properties
    assert (summary["penstock.sink"], summary["penstock.snapshot"]) == ("sink", "1")
    # Somebody else's snapshot is the only one that is left; the record stays.
    table.append(pa.table({"a": [7], "p": ["other"]}, AP.as_arrow()))
    old = [s.snapshot_id for s in table.metadata.snapshots if s != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    commit_without_the_ledger(first)
    assert lake.rows() == [(1, "x"), (7, "other")]
    # Somebody removes the record; a snapshot has it still.
    with pytest.raises(JobError, match="output of snapshot 2 is lost"):
        commit_without_the_ledger(second)
    second = task.snapshot(2, [(2, "x")])
    sink.create_committer().commit(second)
    with lake.table().transaction() as transaction:
        transaction.remove_properties(record)
    commit_without_the_ledger(second)
    assert lake.rows() == [(1, "x"), (2, "x"), (7, "other")]


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_writer_that_comes_between_makes_a_commit_try_again(lake, monkeypatch, mode):
    lake.create(by=[("p", "identity")])
    sink = lake.sink(**keyed(mode))
    other = pa.table({"a": [1, 7], "p": ["other", "other"]}, AP.as_arrow())
    interleaved(monkeypatch, IcebergLog, f"_{mode}", lambda: lake.table().append(other))
    committer = sink.create_committer()
    committer.commit(Task(sink).snapshot(1, [(1, "x")]))
    committer.finish("line", "sink")
    kept = {"append": [(1, "other"), (7, "other")], "upsert": [(7, "other")], "overwrite": []}
    assert lake.rows() == sorted([(1, "x"), *kept[mode]])
    files = {
        Path(t.file.file_path.removeprefix("file://")) for t in lake.table().scan().plan_files()
    }
    on_disk = set((sink.table.location / "data").rglob("*.parquet"))
    assert len(on_disk - files) == (0 if mode == "append" else 1), "what was tried first is removed"


def test_two_committers_of_one_snapshot_publish_it_once(lake, monkeypatch):
    lake.create()
    sink = lake.sink()
    commit_two_beside_another(monkeypatch, IcebergLog, sink)
    assert lake.rows() == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_whose_answer_is_lost_is_looked_for_in_the_table(lake, monkeypatch, mode):
    lake.create()
    sink = lake.sink(**keyed(mode))
    real = SqlCatalog.commit_table
    answers = [CommitStateUnknownException("no answer")]

    def commit_table(self, *arguments):
        done = real(self, *arguments)
        if answers:
            raise answers.pop()
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    sink.create_committer().commit(Task(sink).snapshot(1, [(1, "x")]))
    assert lake.rows() == [(1, "x")]
    assert len(lake.table().metadata.snapshots) == 1


def test_a_record_that_does_not_fit_is_named_before_anything_is_staged(lake):
    lake.create()
    sink = lake.sink()
    for record, words in [
        ((None, "x"), "column 'a': it is None, and the column is NOT NULL"),
        (("1", "x"), "column 'a': its type is str"),
        ((2**63, "x"), "column 'a'"),
        ({"a": 1}, "column 'p': it is missing"),
    ]:
        with pytest.raises(JobError, match=words):
            Task(sink).write([record])
    assert not (sink.table.location / "_staging").exists()


def test_a_partition_that_no_folder_can_be_named_for_is_refused_with_the_record(lake):
    lake.create(by=[("p", "identity")])
    for mode, options in [("append", {}), ("upsert", {"keys": ["a"]})]:
        task = Task(lake.sink(mode=mode, **options))
        for text in ("x" * 300, "a\0b"):
            with pytest.raises(JobError, match="a value that cannot name a folder") as caught:
                task.write([(1, "fine"), (2, text)])
            assert caught.value.record == repr((2, text))
        task.writer.close()


def test_output_for_a_table_that_was_replaced_is_not_published(lake):
    lake.create()
    sink = lake.sink()
    first, second = (Task(sink).snapshot(n, [(n, "x")]) for n in (1, 2))
    changes = lake.sink(mode="upsert", keys=["a"])
    change = Task(changes, uid="changes").snapshot(1, [(1, "y")])
    with lake.table().update_schema() as update:
        update.add_column("new", LongType())
    sink.create_committer().commit(first)
    assert lake.rows() == [(1, "x", None)]
    with pytest.raises(JobError, match="would lose what is in the new ones"):
        changes.create_committer().commit(change)
    with lake.table().update_spec() as update:
        update.add_identity("p")
    with pytest.raises(JobError, match="staged for: its partition columns"):
        sink.create_committer().commit(second)
    with lake.table().update_spec() as update:
        update.remove_field("p")
    with lake.table().update_schema() as update:
        update.rename_column("p", "q")
    with pytest.raises(JobError, match=r"staged for: its (column 'p' is gone|partitioning)"):
        sink.create_committer().commit(second)
    lake.catalog.drop_table("db.t")
    with pytest.raises(JobError, match=r"has no table 'db\.t'"):
        sink.create_committer().commit(second)
    lake.create()
    with pytest.raises(JobError, match="staged for: its id"):
        sink.create_committer().commit(second)


def test_tables_that_cannot_be_written_exactly_once_are_refused_with_the_reason(lake):
    lake.create("times", pa.schema([("x", pa.time64("us"))]))
    three = Path(lake.create("three").metadata_location.removeprefix("file://"))
    metadata = json.loads(three.read_text(encoding="utf-8"))
    metadata |= {"format-version": 3, "next-row-id": 0}
    three.write_text(json.dumps(metadata), encoding="utf-8")
    lake.create("floats", pa.schema([("f", pa.float64())]), [("f", "identity")])
    nested = pa.schema([("r", pa.struct([("p", pa.int32())]))])
    table = lake.catalog.create_table("db.nested", nested)
    with table.update_spec() as spec:
        spec.add_identity("r.p")
    for name, words in [
        ("times", "column 'x': .* cannot write the type time"),
        ("three", "its format has version 3"),
        ("floats", r"partitioned by identity\(f\) of the type double"),
        ("nested", "lies within another column"),
        ("none", r"has no table 'db\.none'"),
    ]:
        with pytest.raises(GraphError, match=words):
            lake.sink(name)
    with pytest.raises(GraphError, match="is named with its catalog and namespace"):
        SparkTableSink("t", iceberg_catalog=lake.properties)
    away = {**lake.properties, "uri": "sqlite:////nowhere/catalog.db"}
    with pytest.raises(GraphError, match=r"the Iceberg table lake\.db\.t cannot be read"):
        SparkTableSink("lake.db.t", iceberg_catalog=away)


def test_an_upsert_rewrites_the_files_that_have_changed_rows(lake):
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
    lake.create(schema=schema, by=[("k", "bucket[2]")], **{"write.delete.mode": "merge-on-read"})
    sink = lake.sink(mode="upsert", keys=["k", "n"], is_delete=lambda row: row[2] is None)
    task, committer = Task(sink), sink.create_committer()
    rows = [(f"k{i}", i % 3, float(i)) for i in range(20)]
    committer.commit(task.snapshot(1, rows[:10]))
    committer.commit(task.snapshot(2, rows[10:]))
    committer.commit(task.snapshot(3, [("k1", 1, None), ("k2", 2, 0.5), ("k2", 0, 7.0)]))
    committer.commit(task.snapshot(4, [("nobody", 1, None)]))
    expected = {(k, n): v for k, n, v in rows} | {("k2", 2): 0.5, ("k2", 0): 7.0}
    del expected["k1", 1]
    assert lake.rows() == sorted(((*key, v) for key, v in expected.items()), key=repr)


def test_a_crash_of_the_machine_finds_the_metadata_on_the_disk(lake, monkeypatch):
    lake.create()
    sink = lake.sink()
    committables = Task(sink).snapshot(1, [(1, "x")])
    synced = set()
    real = os.fsync

    def fsync(descriptor):
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    before = set(sink.table.location.rglob("metadata/*"))
    monkeypatch.setattr(os, "fsync", fsync)
    sink.create_committer().commit(committables)
    new = set(sink.table.location.rglob("metadata/*")) - before
    assert len(new) == 3, "a manifest, a list of manifests, and the table's metadata"
    assert new | {sink.table.location / "metadata", sink.table.location / "data"} <= synced


def test_a_catalog_of_spark_is_reached_by_its_settings(lake, monkeypatch):
    lake.create()
    prefix = "spark.sql.catalog.lake"
    settings = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": lake.properties["uri"].replace("sqlite://", "jdbc:sqlite:"),
        f"{prefix}.jdbc.password": "not taken along",
        f"{prefix}.warehouse": lake.properties["warehouse"],
    }
    conf = SimpleNamespace(get=settings.get, getAll=settings)
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=list))
    names = SimpleNamespace(currentCatalog=lambda: "lake", currentDatabase=lambda: "db")
    session = SimpleNamespace(conf=conf, sparkContext=context, catalog=names)
    for name in ("lake.db.t", "db.t", "`t`"):
        sink = SparkTableSink(name, spark=session)
        assert str(sink.table) == "table lake.db.t"
        assert sink.table.properties == lake.properties | {"uri": sink.table.properties["uri"]}
    sink.create_committer().commit(Task(sink).snapshot(1, [(1, "x")]))
    assert lake.rows() == [(1, "x")]
    settings[f"{prefix}.type"] = "hadoop"
    with pytest.raises(GraphError, match="'hadoop': a commit there is a rename of a file"):
        SparkTableSink("lake.db.t", spark=session)


def test_settings_of_catalogs_are_those_of_pyiceberg_and_no_secrets():
    def taken(**settings):
        return from_spark("c", {f"spark.sql.catalog.c.{k}": v for k, v in settings.items()})

    rest = {"type": "rest", "uri": "http://127.0.0.1", "scope": "all"}
    assert taken(**rest, token="t", cache="no") == rest
    assert taken(**{"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}) == {"type": "rest"}
    postgres = {"type": "jdbc", "uri": "jdbc:postgresql://h/db?x=1", "jdbc.user": "me"}
    assert taken(**postgres) == {"type": "sql", "uri": "postgresql+psycopg2://me@h/db"}
    hive = {"spark.sql.catalog.c.type": "hive", "spark.hadoop.hive.metastore.uris": "thrift://h"}
    assert from_spark("c", hive) == {"type": "hive", "uri": "thrift://h"}
    with pytest.raises(GraphError, match="only sqlite and postgresql"):
        taken(type="jdbc", uri="jdbc:derby:x")
    with pytest.raises(GraphError, match="'nessie': pyiceberg has no such catalog"):
        taken(type="nessie")
    for properties in ({"token": "x"}, {"uri": "postgresql://me:secret@h/db"}):
        with pytest.raises(GraphError, match=r"PYICEBERG_CATALOG__C__(TOKEN|URI)"):
            checked_settings("c", properties)
    assert checked_settings("c", {"uri": "sqlite:///x.db"}) == {
        "uri": f"sqlite:///{Path.cwd()}/x.db"
    }


def test_without_the_package_it_is_said_what_to_install(lake, monkeypatch):
    lake.create()
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(GraphError, match=r"pip install 'penstock\[iceberg\]'"):
        lake.sink()


def test_a_job_killed_while_it_publishes_loses_and_doubles_no_row(lake, tmp_path):
    types = {"string": pa.string(), "long": pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in lake_jobs.COLUMNS])
    lake.create(schema=schema, by=[("part", "identity"), ("word", "bucket[2]")])

    def sink():
        return lake_jobs.LakeSink("lake.db.t", iceberg_catalog=lake.properties)

    assert lake_jobs.run_and_die(tmp_path, sink, ["logged", "written"]) == 2
    assert lake_jobs.lost_and_doubled(lake.rows()) == (0, 0)
