"""`SparkTableSink` with Delta tables, written and read through delta-rs; there is no JVM in it."""

import datetime as dt
import json
import shutil
from decimal import Decimal
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema

from penstock.connectors.lake.delta_log import DeltaLog, statistics
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
AP = pa.schema([pa.field("a", pa.int64(), False), ("p", pa.string())])


def create(path, schema=AP, partition_by=(), **options):
    """A new Delta table; returns its name in SQL."""
    fields = Schema.from_arrow(schema)
    DeltaTable.create(str(path), fields, partition_by=list(partition_by), **options)
    return f"delta.`{path}`"


def rows(path, condition="TRUE"):
    """The rows of a table, as delta-rs's own query engine finds them."""
    table = QueryBuilder().register("t", DeltaTable(path))
    read = pa.table(table.execute(f"SELECT * FROM t WHERE {condition}").read_all())
    return sorted((tuple(row.values()) for row in read.to_pylist()), key=repr)


def edit_log(path, **changes):
    """Change what the first version of the log says."""
    first = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        for kind, change in changes.items():
            if kind in action:
                change(action[kind])
    first.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


def with_features(*features):
    """Changes the protocol to one that has features."""

    def change(protocol):
        protocol.clear()
        protocol |= {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": [], "writerFeatures": list(features)}
        both = {"columnMapping", "deletionVectors", "timestampNtz"} & set(features)
        protocol["readerFeatures"] = sorted(both)

    return change


FULL = {
    "b": (pa.bool_(), True),
    "i1": (pa.int8(), -128),
    "i2": (pa.int16(), -32768),
    "i4": (pa.int32(), -(2**31)),
    "i8": (pa.int64(), 2**63 - 1),
    "f4": (pa.float32(), 1.5),
    "f8": (pa.float64(), 0.1),
    "s": (pa.string(), "é\u2028\0"),
    "x": (pa.binary(), b"\0\xff"),
    "d": (pa.date32(), dt.date(1, 1, 1)),
    "t": (pa.timestamp("us", "UTC"), dt.datetime(1950, 1, 1, 12, 30, 1, 7, tzinfo=UTC)),
    "n": (pa.timestamp("us"), dt.datetime(2024, 2, 29, 12, 0, 0, 999999)),
    "m": (pa.decimal128(10, 2), Decimal("-99999999.99")),
    "a": (pa.list_(pa.int32()), [1, None, 3]),
    "r": (pa.struct([("p", pa.int32()), ("q", pa.string())]), {"p": 1, "q": None}),
}


def test_each_type_is_read_as_it_was_written_and_is_found_by_the_statistics(tmp_path):
    schema = pa.schema([(name, kind) for name, (kind, _) in FULL.items()])
    sink = SparkTableSink(create(tmp_path / "t", schema))
    sink.validate()
    full = tuple(value for _, value in FULL.values())
    committables = Task(sink).snapshot(1, [full, (None,) * len(full)])
    assert rows(tmp_path / "t") == []
    sink.create_committer().commit(committables)
    assert rows(tmp_path / "t") == sorted([full, (None,) * len(full)], key=repr)
    for condition in [
        "i8 > 5",
        "s > 'a'",
        "d < DATE '1000-01-01'",
        "t = TIMESTAMP '1950-01-01T12:30:01.000007Z'",
        "n >= TIMESTAMP '2024-02-29T12:00:00.999999'",
    ]:
        assert rows(tmp_path / "t", condition) == [full], condition
    known = statistics(next((tmp_path / "t").glob("part-*")))
    assert known["numRecords"] == 2
    assert known["nullCount"] == dict.fromkeys(list(FULL)[:-2], 1)
    assert known["maxValues"]["n"] == "2024-02-29T12:00:01.000"
    assert known["minValues"]["n"] == "2024-02-29T12:00:00.999"
    assert set(known["minValues"]) == {"i1", "i2", "i4", "i8", "s", "d", "t", "n"}


def test_a_partition_is_in_the_log_with_its_value(tmp_path):
    schema = pa.schema([("a", pa.int32()), ("q", pa.string()), ("d", pa.date32())])
    sink = SparkTableSink(create(tmp_path / "t", schema, ["q", "d"]))
    day = dt.date(2024, 2, 29)
    records = [(1, "x/y=z %é\\'\"", day), (2, None, None), (3, "x", day), (4, "x", day)]
    sink.create_committer().commit(Task(sink).snapshot(1, records))
    assert rows(tmp_path / "t") == sorted(records, key=repr)
    assert rows(tmp_path / "t", "d = DATE '2024-02-29' AND q = 'x'") == [records[2], records[3]]
    assert len(DeltaTable(tmp_path / "t").file_uris()) == 3


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_crash_after_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch, mode):
    old = SparkTableSink(create(tmp_path / "0", partition_by=["p"]))
    old.create_committer().commit(Task(old, "old").snapshot(1, [(0, "x"), (1, "x")]))
    transactions = [
        (DeltaTable, "create_write_transaction"),
        (deltalake.table.TableMerger, "execute"),
    ]

    def table(step):
        path = tmp_path / str(step)
        shutil.copytree(tmp_path / "0", path)
        return SparkTableSink(f"delta.`{path}`", **keyed(mode)), lambda: rows(path)

    done = crash_after_each_step(monkeypatch, mode, transactions, table)
    assert {"append": "create_write_transaction", "upsert": "execute"}.get(mode, "replace") in done


def test_what_the_log_has_is_not_published_again_without_the_ledger(tmp_path):
    name = create(tmp_path / "t")
    sink = SparkTableSink(name)
    committables = Task(sink).snapshot(1, [(1, "x")])
    sink.create_committer().commit(committables)
    for path in (tmp_path / "t" / "_staging").iterdir():
        path.unlink()
    # The log is cut off behind a checkpoint, and the file was compacted.
    table = DeltaTable(tmp_path / "t")
    table.create_checkpoint()
    for version in (tmp_path / "t" / "_delta_log").glob("*.json"):
        version.unlink()
    table.optimize.compact()
    sink.create_committer().commit(committables)
    assert rows(tmp_path / "t") == [(1, "x")]
    later = Task(sink).snapshot(2, [(2, "y")])
    sink.create_committer().files.staged(later[0]).unlink()
    with pytest.raises(JobError, match="output of snapshot 2 is lost"):
        sink.create_committer().commit(later)


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_writer_that_comes_between_makes_a_commit_try_again(tmp_path, monkeypatch, mode):
    name = create(tmp_path / "t")
    sink = SparkTableSink(name, **keyed(mode))
    other = pa.table({"a": [7], "p": ["other"]}, AP)
    interleaved(
        monkeypatch,
        DeltaLog,
        f"_{mode}",
        lambda: deltalake.write_deltalake(str(tmp_path / "t"), other, mode="append"),
    )
    committer = sink.create_committer()
    committer.commit(Task(sink).snapshot(1, [(1, "x")]))
    committer.finish("line", "sink")
    kept = [] if mode == "overwrite" else [(7, "other")]
    assert rows(tmp_path / "t") == [(1, "x"), *kept]


def test_two_committers_of_one_snapshot_publish_it_once(tmp_path, monkeypatch):
    sink = SparkTableSink(create(tmp_path / "t"))
    commit_two_beside_another(monkeypatch, DeltaLog, sink)
    assert rows(tmp_path / "t") == [(1, "x"), (2, "y")]
    assert DeltaTable(tmp_path / "t").transaction_version("penstock/line/sink") == 2


def test_a_record_that_does_not_fit_is_named_before_anything_is_staged(tmp_path):
    sink = SparkTableSink(create(tmp_path / "t"))
    for record, words in [
        ((None, "x"), "column 'a': it is None, and the column is NOT NULL"),
        (("1", "x"), "column 'a': its type is str"),
        ((1, "x", 2), "it has 3 values, and there are 2 columns"),
        ({"a": 1}, "column 'p': it is missing"),
    ]:
        with pytest.raises(JobError, match=words):
            Task(sink).write([record])
    assert not (tmp_path / "t" / "_staging").exists()


def test_output_for_a_table_that_was_replaced_is_not_published(tmp_path):
    name = create(tmp_path / "t")
    sink = SparkTableSink(name)
    first, second = (Task(sink).snapshot(n, [(n, "x")]) for n in (1, 2))
    table = DeltaTable(tmp_path / "t")
    table.alter.add_columns([deltalake.Field("new", "long")])
    sink.create_committer().commit(first)
    assert rows(tmp_path / "t") == [(1, "x", None)]
    for schema, words in [
        (pa.schema([pa.field("a", pa.int64()), ("p", pa.string())]), "its (id|column 'a')"),
        (pa.schema([("b", pa.int64())]), "its (id|column 'a')"),
    ]:
        create(tmp_path / "t", schema, mode="overwrite")
        with pytest.raises(JobError, match=f"that this output was staged for: {words}"):
            sink.create_committer().commit(second)
    for version in (tmp_path / "t" / "_delta_log").iterdir():
        version.unlink()
    with pytest.raises(JobError, match="there is no Delta table"):
        sink.create_committer().commit(second)


def test_tables_that_cannot_be_written_exactly_once_are_refused_with_the_reason(tmp_path):
    def configured(**configuration):
        return {"metaData": lambda metadata: metadata.update(configuration=configuration)}

    def field(**metadata):
        def change(action):
            schema = json.loads(action["schemaString"])
            schema["fields"][0]["metadata"] = metadata
            action["schemaString"] = json.dumps(schema)

        return {"metaData": change}

    cases = [
        ({"protocol": with_features("rowTracking", "domainMetadata")}, "'domainMetadata'"),
        ({"protocol": with_features("inCommitTimestamp")}, "'inCommitTimestamp'"),
        ({"protocol": with_features("somethingNew")}, "'somethingNew', which cannot be written"),
        ({"protocol": lambda p: p.update(minWriterVersion=6)}, "'identityColumns'"),
        (
            {"protocol": lambda p: p.update(minWriterVersion=3)}
            | configured(**{"delta.constraints.positive": "a > 0"}),
            "the constraint 'positive'",
        ),
        (
            {"protocol": with_features("invariants")} | field(**{"delta.invariants": "{}"}),
            "an invariant on its column 'a'",
        ),
        (
            {"protocol": with_features("generatedColumns")}
            | field(**{"delta.generationExpression": "1"}),
            "the generated column 'a'",
        ),
        (
            configured(**{"delta.setTransactionRetentionDuration": "interval 7 days"}),
            "lets the log forget",
        ),
    ]
    for number, (changes, words) in enumerate(cases):
        name = create(tmp_path / str(number))
        edit_log(tmp_path / str(number), **changes)
        with pytest.raises(GraphError, match=words):
            SparkTableSink(name)
    with pytest.raises(GraphError, match="there is no Delta table in"):
        SparkTableSink(f"delta.`{tmp_path / 'none'}`")
    name = create(tmp_path / "p", pa.schema([("a", pa.int64()), ("f", pa.float64())]), ["f"])
    with pytest.raises(GraphError, match="partitioned by 'f' of type double"):
        SparkTableSink(name)


def test_rows_of_some_tables_are_only_added(tmp_path):
    name = create(tmp_path / "dv")
    edit_log(tmp_path / "dv", protocol=with_features("deletionVectors"))
    sink = SparkTableSink(name)
    sink.create_committer().commit(Task(sink).snapshot(1, [(1, "x")]))
    assert rows(tmp_path / "dv") == [(1, "x")]
    only = create(tmp_path / "only", configuration={"delta.appendOnly": "true"})
    for table, words in [(name, "may have deletion vectors"), (only, "delta.appendOnly")]:
        for options in ({"mode": "overwrite"}, {"mode": "upsert", "keys": ["a"]}):
            with pytest.raises(GraphError, match=words):
                SparkTableSink(table, **options)


def test_a_table_that_can_no_longer_be_written_fails_the_commit(tmp_path):
    sink = SparkTableSink(create(tmp_path / "t"))
    committables = Task(sink).snapshot(1, [(1, "x")])
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "a > 0"})
    with pytest.raises(JobError, match="any more: it has the constraint 'positive'"):
        sink.create_committer().commit(committables)
    assert rows(tmp_path / "t") == []


def test_an_upsert_changes_adds_and_removes_rows_wherever_they_are(tmp_path):
    schema = pa.schema([("Odd `name", pa.string()), ("v", pa.int64()), ("p", pa.string())])
    name = create(tmp_path / "t", schema, ["p"])
    sink = SparkTableSink(name, "upsert", keys=["Odd `name"], is_delete=lambda row: row[1] is None)
    task, committer = Task(sink), sink.create_committer()
    committer.commit(task.snapshot(1, [("a", 1, "x"), ("b", 2, "y"), ("c", 3, "y")]))
    changes = task.snapshot(2, [("a", 5, "x")], [("a", 6, "z"), ("b", None, None), ("d", 1, None)])
    committer.commit(changes)
    committer.commit(task.snapshot(3, [("nobody", None, None)]))
    assert rows(tmp_path / "t") == [("a", 6, "z"), ("c", 3, "y"), ("d", 1, None)]


def test_a_catalog_knows_a_delta_table_by_its_location(tmp_path):
    create(tmp_path / "t")
    described = [
        ("a", "bigint", None),
        ("p", "string", None),
        ("Location", "string", "a column of this name"),
        ("", "", ""),
        ("# Detailed Table Information", "", ""),
        ("Name", "spark_catalog.default.t", ""),
        ("Type", "EXTERNAL", ""),
        ("Location", f"file:{tmp_path / 't'}", ""),
        ("Provider", "delta", ""),
    ]
    session = SimpleNamespace(
        catalog=SimpleNamespace(currentCatalog=lambda: "spark_catalog", currentDatabase=str),
        conf=SimpleNamespace(get=lambda key, default: default),
        sql=lambda statement: SimpleNamespace(collect=lambda: described),
    )
    sink = SparkTableSink("db.t", spark=session)
    sink.create_committer().commit(Task(sink).snapshot(1, [(1, "x")]))
    assert rows(tmp_path / "t") == [(1, "x")]
    assert str(sink.table) == "table db.t"


def test_without_the_package_it_is_said_what_to_install(tmp_path, monkeypatch):
    name = create(tmp_path / "t")
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(GraphError, match=r"pip install 'penstock\[delta\]'"):
        SparkTableSink(name)


def test_a_job_killed_while_it_publishes_loses_and_doubles_no_row(tmp_path):
    types = {"string": pa.string(), "long": pa.int64()}
    schema = pa.schema([(name, types[kind]) for name, kind in lake_jobs.COLUMNS])
    name = create(tmp_path / "t", schema, ["part"])
    points = ["linked", "logged", "written"]
    assert lake_jobs.run_and_die(tmp_path, lambda: lake_jobs.LakeSink(name), points) == 3
    assert lake_jobs.lost_and_doubled(rows(tmp_path / "t")) == (0, 0)
