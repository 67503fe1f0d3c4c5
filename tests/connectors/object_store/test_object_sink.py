"""`ObjectStoreSink` puts objects into a real server: each record once, whatever is repeated."""

from __future__ import annotations

import csv
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import CsvRows, GraphError, JobError, JsonLines, StreamExecutionEnvironment
from penstock.connectors.object_store import (
    ObjectStore,
    ObjectStoreSink,
    ObjectStoreSource,
    ParquetRows,
    object_sink,
)
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.sink import Committable, CommitterContext, WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.s3 import S3Server
from tests.connectors.object_store.test_object_source import below, new_store, put

obstore: Any = pytest.importorskip("obstore")


def objects(store: ObjectStore) -> dict[str, bytes]:
    """Return the content of all objects below a prefix, keyed by name."""
    opened = store.open()
    metas = chain.from_iterable(obstore.list(opened, store.prefix or None))
    names = sorted(meta["path"] for meta in metas)
    return {name: bytes(obstore.get(opened, name).bytes()) for name in names}


def lines(store: ObjectStore) -> list[Any]:
    return [json.loads(line) for data in objects(store).values() for line in data.splitlines()]


# ---- conformance


class InMemory(SinkConformance):
    """The suite against a store in memory, or the server if there is one."""

    server: S3Server | None = None
    options: ClassVar[Any] = {}

    def store(self, place: Path) -> ObjectStore:
        if self.server is None:
            return ObjectStore(f"memory://{place.name}/out")
        return ObjectStore(f"s3://conformance/{place.name}", **self.server.options)

    def create_sink(self, place: Path) -> Any:
        return ObjectStoreSink(self.store(place), JsonLines(), **self.options)

    def read_output(self, place: Path) -> list[Any]:
        return lines(self.store(place))


class TestLines(InMemory):
    pass


class TestFoldersAndSmallObjects(InMemory):
    options: ClassVar[Any] = {"partition_by": lambda text: f"last={text[-1]}", "max_bytes": 20}


class TestMergedObjects(InMemory):
    whole_snapshots = True
    options: ClassVar[Any] = {
        "partition_by": lambda text: f"last={int(text[-1]) % 2}",
        "compact_bytes": 100,
    }


@pytest.mark.connectors
class TestServer(InMemory):
    @pytest.fixture(autouse=True)
    def bucket(self, s3_server: S3Server) -> None:
        s3_server.create_bucket("conformance")
        self.server = s3_server


@pytest.mark.connectors
class TestMergedOnServer(TestServer, TestMergedObjects):
    pass


class TestMergedParquet(InMemory):
    whole_snapshots = True

    def create_sink(self, place: Path) -> Any:
        pytest.importorskip("pyarrow")
        format = ParquetRows(schema={"text": "string"}, row_group_rows=2)
        return ObjectStoreSink(self.store(place), format, compact_bytes=1 << 20)

    def record(self, number: int) -> Any:
        return {"text": f"record {number}"}

    def read_output(self, place: Path) -> list[Any]:
        parquet = pytest.importorskip("pyarrow.parquet")
        files = objects(self.store(place)).values()
        return [row for data in files for row in parquet.read_table(io.BytesIO(data)).to_pylist()]


# ---- jobs


def run(records: list[Any], sink: ObjectStoreSink, parallelism: int = 2) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.from_collection(records).rebalance().sink_to(sink)
    env.execute("objects")


def test_a_job_writes_folders_that_a_source_reads(s3_server: S3Server):
    store = new_store(s3_server, "/out")
    records = [{"day": f"2026-11-{n % 3 + 1:02}", "n": n} for n in range(30)]
    run(records, ObjectStoreSink(store, JsonLines(), partition_by=lambda r: f"day={r['day']}"))
    names = list(objects(store))
    assert {name.split("/")[1] for name in names} == {f"day=2026-11-0{i}" for i in (1, 2, 3)}
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ObjectStoreSource(below(store, "out/day=2026-11-01/*.jsonl"), JsonLines())
    found = list(env.from_source(source).execute_and_collect())
    assert sorted(r["n"] for r in found) == list(range(0, 30, 3))


def test_small_objects_of_all_subtasks_are_merged(s3_server: S3Server):
    store = new_store(s3_server, "/out")
    run([(n, f"é{n}") for n in range(20)], ObjectStoreSink(store, CsvRows(["n", "t"])), 4)
    assert len(objects(store)) == 4
    merged = new_store(s3_server, "/out")
    sink = ObjectStoreSink(merged, CsvRows(["n", "t"]), compact_bytes=1 << 20)
    run([(n, f"é{n}") for n in range(20)], sink, 4)
    (data,) = objects(merged).values()
    header, *rows = csv.reader(io.StringIO(data.decode()))
    assert header == ["n", "t"]
    assert sorted(rows, key=lambda row: int(row[0])) == [[str(n), f"é{n}"] for n in range(20)]


def test_columns_are_written_as_parquet(s3_server: S3Server):
    pa = pytest.importorskip("pyarrow")
    from penstock import ArrowSource

    store = new_store(s3_server, "/out")
    env = StreamExecutionEnvironment.get_execution_environment()
    table = pa.table({"user": ["ann", "bob"], "amount": [5, 7]})
    env.from_source(ArrowSource(table)).sink_to(ObjectStoreSink(store, ParquetRows()))
    env.execute("columns")
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ObjectStoreSource(store, ParquetRows(["amount"]))
    rows = env.from_source(source).map(lambda row: row["amount"])
    assert sorted(rows.execute_and_collect()) == [5, 7]
    with pytest.raises(GraphError, match=r"has no column 'price'"):
        ObjectStoreSource(store, ParquetRows(["price"])).validate()


# ---- committing by hand


class Staged:
    """One subtask's output of snapshot 7, and committers for it."""

    def __init__(self, store: ObjectStore, folder: Path, records: list[Any]) -> None:
        self.sink = ObjectStoreSink(store, JsonLines())
        self.folder = folder
        context = WriterContext("out", "Sink", 0, 1, 1, "0a1b2c3d", staging=folder)
        writer = self.sink.create_writer(context)
        writer.open()
        writer.write(records)
        finish = writer.prepare(7)
        assert finish is not None
        self.committables = [
            Committable("0a1b2c3d", "out", 0, 7, 1, payload) for payload in finish()
        ]
        writer.close()

    def commit(self) -> None:
        committer = self.sink.create_committer()
        committer.open(CommitterContext("Sink", "0a1b2c3d", staging=(self.folder,)))
        committer.commit(self.committables)


def test_other_content_under_the_name_is_refused_and_kept(s3_server: S3Server, tmp_path: Path):
    store = new_store(s3_server, "/out")
    staged = Staged(store, tmp_path, ["a"])
    key = f"out/{staged.committables[0].payload['target']}"
    put(store, key, '"b"\n')
    with pytest.raises(JobError, match="is there already with other content") as info:
        staged.commit()
    assert info.value.recoverability is Recoverability.NON_RECOVERABLE
    assert lines(store) == ["b"]
    put(store, key, '"a"\n')  # as a process that died has put it
    staged.commit()
    assert list(tmp_path.iterdir()) == []
    staged.commit()
    obstore.delete(store.open(), key)
    with pytest.raises(JobError, match="output of snapshot 7 is lost"):
        staged.commit()


def test_a_damaged_staged_file_is_refused(s3_server: S3Server, tmp_path: Path):
    store = new_store(s3_server, "/out")
    staged = Staged(store, tmp_path, ["a"])
    (path,) = tmp_path.iterdir()
    path.write_bytes(b'"b"\n')
    with pytest.raises(JobError, match="has another size or checksum than recorded"):
        staged.commit()
    assert objects(store) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"target": "../part-1.jsonl"},
        {"target": "/part-1.jsonl"},
        {"target": "a/other.jsonl"},
        {"target": "_hidden/part-1.jsonl"},
        {"staged": "../../etc/passwd"},
        {"staged": 5},
    ],
)
def test_a_snapshot_of_a_stranger_publishes_nothing(tmp_path: Path, change: dict[str, Any]):
    store = new_store(None, "/out")
    staged = Staged(store, tmp_path, ["a"])
    staged.committables[0].payload.update(change)  # type: ignore[union-attr]
    with pytest.raises(JobError, match="holds output that this sink has not staged"):
        staged.commit()
    assert objects(store) == {}


def test_a_large_object_is_put_in_parts(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(object_sink, "_LARGEST_PUT", 1 << 20)
    monkeypatch.setattr(object_sink, "_PART_BYTES", 5 << 20)
    store = new_store(s3_server, "/out")
    staged = Staged(store, tmp_path, ["x" * (11 << 20)])
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    staged.commit()
    (meta,) = chain.from_iterable(obstore.list(store.open(), "out"))
    assert meta["e_tag"].strip('"').endswith("-3"), "it was not put in three parts"
    assert list(objects(store).values()) == [content]
    path.write_bytes(content)  # the process died before it removed the staged file
    staged.commit()
    assert lines(store) == ["x" * (11 << 20)]


# ---- refusals


def test_a_store_that_refuses_or_is_missing_is_said_before_the_job_starts(s3_server: S3Server):
    sink = ObjectStoreSink(ObjectStore("s3://there-is-none/out", **s3_server.options))
    with pytest.raises(GraphError, match="no bucket for s3://there-is-none/out"):
        sink.validate()
    down = ObjectStore(
        "s3://bucket", endpoint="http://127.0.0.1:1", retry_seconds=0.1, skip_signature=True
    )
    with pytest.raises(GraphError, match="cannot be listed"):
        ObjectStoreSink(down).validate()


def test_arguments_are_checked():
    with pytest.raises(GraphError, match="the format of an object store sink"):
        ObjectStoreSink("memory://x", "json")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="writes below one prefix"):
        ObjectStoreSink("memory://x/*")
    with pytest.raises(GraphError, match="max_bytes"):
        ObjectStoreSink("memory://x", max_bytes=0)


@pytest.mark.parametrize("folder", ["", "/a", "a//b", "_x", "a/.b", "..", "a\nb", 5])
def test_a_folder_that_readers_would_skip_is_refused(tmp_path: Path, folder: Any):
    sink = ObjectStoreSink("memory://refused", partition_by=lambda _: folder)
    writer = sink.create_writer(WriterContext("u", "S", 0, 1, 1, "00", staging=tmp_path))
    with pytest.raises(JobError, match="partition_by returned"):
        writer.write(["x"])
    writer.close()
    assert list(tmp_path.iterdir()) == []
