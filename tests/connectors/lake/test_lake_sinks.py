"""`DeltaSink` and `IcebergSink` pass the suite of sinks, in each mode, and write columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
import pyarrow as pa

from penstock import ArrowSource, GraphError, JobError, StreamExecutionEnvironment
from penstock.connectors.lake import (
    DeltaSink,
    DeltaSource,
    IcebergSink,
    IcebergSource,
    data_file,
    writers,
)
from penstock.connectors.lake.table_store import TableStore
from penstock.connectors.object_store import ObjectStore
from penstock.dataflow.sink import Committable, WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.s3 import S3Server
from tests.connectors.lake.tables import SCHEMA, Catalog, create_delta, delta_rows, read_rows


class OfTable(SinkConformance):
    whole_snapshots = True
    options: ClassVar[Any] = {}

    def record(self, number: int) -> Any:
        return {"key": f"key {number}", "n": number}


class TestDelta(OfTable):
    def create_sink(self, place: Path) -> Any:
        if not (place / "t").exists():
            create_delta(place / "t")
        return DeltaSink(place / "t", **self.options)

    def read_output(self, place: Path) -> Any:
        return delta_rows(place / "t")


@pytest.mark.connectors
class TestDeltaUpserts(TestDelta):
    options: ClassVar[Any] = {"mode": "upsert", "keys": ["key"]}


@pytest.mark.connectors
class TestDeltaInStore(OfTable):
    """The suite against a table in a real object store."""

    @pytest.fixture(autouse=True)
    def bucket(self, s3_server: S3Server) -> None:
        s3_server.create_bucket("tables")
        self.server = s3_server

    def place(self, place: Path) -> TableStore:
        return TableStore(ObjectStore(f"s3://tables/{place.name}", **self.server.options))

    def create_sink(self, place: Path) -> Any:
        table = self.place(place)
        if not deltalake.DeltaTable.is_deltatable(table.uri, table.delta_options):
            schema = deltalake.Schema.from_arrow(SCHEMA)
            options = table.delta_options
            deltalake.DeltaTable.create(
                table.uri, schema, partition_by=["key"], storage_options=options
            )
        return DeltaSink(table.store)  # type: ignore[arg-type]

    def read_output(self, place: Path) -> Any:
        return read_rows(DeltaSource(self.place(place).store))  # type: ignore[arg-type]

    def test_only_appends_are_possible(self, tmp_path: Path) -> None:
        self.create_sink(tmp_path)
        store: Any = self.place(tmp_path).store
        with pytest.raises(GraphError, match="only rows of tables in local folders"):
            DeltaSink(store, "upsert", keys=["key"])


@pytest.mark.connectors
class TestIceberg(OfTable):
    def create_sink(self, place: Path) -> Any:
        catalog = Catalog(place)
        try:
            if not catalog.catalog.table_exists("db.t"):
                catalog.create("t")
        finally:
            catalog.close()
        return IcebergSink("lake.db.t", catalog.settings, **self.options)

    def read_output(self, place: Path) -> Any:
        catalog = Catalog(place)
        try:
            return catalog.rows("t")
        finally:
            catalog.close()


@pytest.mark.connectors
class TestIcebergInStore(OfTable):
    """The suite against a table in a real object store."""

    @pytest.fixture(autouse=True)
    def bucket(self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        s3_server.create_bucket("warehouse")
        self.server = s3_server
        # pyiceberg takes secrets from the environment.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    def catalog(self, place: Path) -> Catalog:
        return Catalog(
            place,
            warehouse=f"s3://warehouse/{place.name}",
            **{
                "s3.endpoint": self.server.endpoint,
                "s3.region": "us-east-1",
                "py-io-impl": "penstock.connectors.lake.durable_io.DurableFileIO",
            },
        )

    def create_sink(self, place: Path) -> Any:
        catalog = self.catalog(place)
        try:
            if not catalog.catalog.table_exists("db.t"):
                catalog.create("t")
        finally:
            catalog.close()
        store = ObjectStore("s3://warehouse", **self.server.options)
        return IcebergSink("lake.db.t", catalog.settings, store=store)

    def read_output(self, place: Path) -> Any:
        catalog = self.catalog(place)
        try:
            return read_rows(IcebergSource("lake.db.t", catalog.settings))
        finally:
            catalog.close()

    def test_only_appends_are_possible(self, tmp_path: Path) -> None:
        settings = self.create_sink(tmp_path) and self.catalog(tmp_path).settings
        store = ObjectStore("s3://warehouse", **self.server.options)
        with pytest.raises(GraphError, match="only rows of tables in local folders"):
            IcebergSink("lake.db.t", settings, "upsert", keys=["key"], store=store)
        with pytest.raises(GraphError, match="is not in a local or mounted file system"):
            IcebergSink("lake.db.t", settings)
        other = ObjectStore("s3://tables", **self.server.options)
        with pytest.raises(GraphError, match=r"store= is for s3://tables"):
            IcebergSink("lake.db.t", settings, store=other)


@pytest.mark.connectors
class TestIcebergUpserts(TestIceberg):
    options: ClassVar[Any] = {"mode": "upsert", "keys": ["key"]}


# ---- jobs


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog(tmp_path / "warehouse")
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_and_rows_are_written(tmp_path: Path, catalog: Catalog, kind: str):
    create_delta(tmp_path / "t")
    catalog.create("t")
    sink: Any = DeltaSink(tmp_path / "t")
    if kind == "iceberg":
        sink = IcebergSink("lake.db.t", catalog.settings)
    env = StreamExecutionEnvironment.get_execution_environment()
    table = pa.table({"n": pa.array([1, 2], pa.int32()), "key": ["a", None]})
    env.from_source(ArrowSource(table)).sink_to(sink)
    env.from_collection([("b", 3), {"key": "c", "n": 4}]).sink_to(sink)
    env.execute("columns")
    rows = delta_rows(tmp_path / "t") if kind == "delta" else catalog.rows("t")
    assert sorted((row["n"], row["key"]) for row in rows) == [
        (1, "a"),
        (2, None),
        (3, "b"),
        (4, "c"),
    ]


def test_tables_that_are_missing_and_wrong_names_are_refused(tmp_path: Path, catalog: Catalog):
    with pytest.raises(GraphError, match="no Delta table in"):
        DeltaSink(tmp_path / "none")
    with pytest.raises(GraphError, match=r"has no table 'db.none'"):
        IcebergSink("lake.db.none", catalog.settings)
    with pytest.raises(GraphError, match="named with its catalog and namespace"):
        IcebergSink("orders", catalog.settings)
    with pytest.raises(GraphError, match="has a secret"):
        IcebergSink("lake.db.none", {**catalog.settings, "token": "x"})
    create_delta(tmp_path / "t")
    with pytest.raises(GraphError, match=r"mode of a DeltaSink is append, overwrite or upsert"):
        DeltaSink(tmp_path / "t", "replace")


def test_a_null_in_a_required_column_of_a_batch_is_refused(tmp_path: Path):
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("n", pa.int64())])
    create_delta(tmp_path / "t", schema)
    env = StreamExecutionEnvironment.get_execution_environment()
    table = pa.table({"key": ["a", None], "n": [1, 2]})
    env.from_source(ArrowSource(table)).sink_to(DeltaSink(tmp_path / "t"))
    with pytest.raises(JobError, match=r"column 'key' of table .* is not nullable"):
        env.execute("nulls")
    assert delta_rows(tmp_path / "t") == []


def test_a_large_data_file_is_complete_before_the_barrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writers, "_FILE_BYTES", 1)
    monkeypatch.setattr(data_file, "_ROW_GROUP_BYTES", 1)
    create_delta(tmp_path / "t")
    sink = DeltaSink(tmp_path / "t")
    writer = sink.create_writer(WriterContext("out", "Sink", 0, 1, 1, "0a1b2c3d"))
    writer.open()
    assert writer.write_columns is not None
    for n in range(3):
        writer.write_columns(pa.RecordBatch.from_pylist([{"key": "k", "n": n}], SCHEMA))
    finish = writer.prepare(1)
    assert finish is not None
    output = [Committable("0a1b2c3d", "out", 0, 1, 1, payload) for payload in finish()]
    assert len(output) == 3
    sink.create_committer().commit(output)
    table = deltalake.DeltaTable(tmp_path / "t")
    assert table.version() == 1 and len(table.file_uris()) == 3
    assert sorted(row["n"] for row in delta_rows(tmp_path / "t")) == [0, 1, 2]
