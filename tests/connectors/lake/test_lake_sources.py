"""`DeltaSource` and `IcebergSource`: versions, new commits, and what they refuse."""

from __future__ import annotations

import datetime
import logging
from abc import abstractmethod
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
import pyarrow as pa

from penstock import GraphError, JobError, StreamExecutionEnvironment
from penstock.connectors.lake import DeltaSource, IcebergSource
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance
from tests.connectors.lake.tables import SCHEMA, Catalog, append_delta, create_delta, read_rows
from tests.processes.harness import wait_until

ROWS = [{"key": f"key {n}", "n": n} for n in range(24)]


# ---- conformance


class OfTable(SourceConformance):
    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.catalog = Catalog(tmp_path / "warehouse")
        self.create()
        for begin in (0, 9, 20):
            self.append(ROWS[begin : {0: 9, 9: 20, 20: 24}[begin]])
        yield
        self.catalog.close()

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def append(self, rows: list[dict[str, Any]]) -> None: ...

    def expected(self) -> list[Any]:
        return ROWS


class TestDelta(OfTable):
    def create(self) -> None:
        create_delta(self.folder / "t")

    def append(self, rows: list[dict[str, Any]]) -> None:
        append_delta(self.folder / "t", rows)

    def create_source(self) -> Any:
        return DeltaSource(self.folder / "t")


class TestDeltaCommits(TestDelta):
    limit = len(ROWS)

    def create_source(self) -> Any:
        return DeltaSource(self.folder / "t", version=0, discovery_seconds=0.001)


@pytest.mark.connectors
class TestIceberg(OfTable):
    def create(self) -> None:
        self.catalog.create("t")

    def append(self, rows: list[dict[str, Any]]) -> None:
        self.catalog.append("t", rows)

    def create_source(self) -> Any:
        return IcebergSource("lake.db.t", self.catalog.settings)


@pytest.mark.connectors
class TestIcebergCommits(TestIceberg):
    limit = len(ROWS)

    def create(self) -> None:
        super().create()
        self.append([])
        self.first = self.catalog.table("t").current_snapshot().snapshot_id

    def create_source(self) -> Any:
        settings = self.catalog.settings
        return IcebergSource("lake.db.t", settings, snapshot_id=self.first, discovery_seconds=0.001)


# ---- both formats


class Delta:
    """A Delta table, and sources of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t"
        create_delta(self.path)

    def append(self, *numbers: int) -> None:
        append_delta(self.path, [{"key": "k", "n": n} for n in numbers])

    def delete(self) -> None:
        deltalake.DeltaTable(self.path).delete("n = 1")

    def version(self) -> int:
        return deltalake.DeltaTable(self.path).version()

    def source(self, columns: Any = None, *, version: int | None = None, **options: Any) -> Any:
        return DeltaSource(self.path, columns, version=version, **options)


class Iceberg:
    """An Iceberg table, and sources of it."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog(folder / "warehouse")
        self.catalog.create("t")
        self.append()

    def append(self, *numbers: int) -> None:
        self.catalog.append("t", [{"key": "k", "n": n} for n in numbers])

    def delete(self) -> None:
        self.catalog.table("t").delete("n = 1")

    def version(self) -> int:
        number: int = self.catalog.table("t").current_snapshot().snapshot_id
        return number

    def source(self, columns: Any = None, *, version: int | None = None, **options: Any) -> Any:
        settings = self.catalog.settings
        return IcebergSource("lake.db.t", settings, columns, snapshot_id=version, **options)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: Any = Delta(tmp_path) if request.param == "delta" else Iceberg(tmp_path)
    yield made
    if isinstance(made, Iceberg):
        made.catalog.close()


class Run:
    """Reads what a source finds, by hand, under a clock of the test."""

    def __init__(self, table: Any, **options: Any) -> None:
        self.now = 0.0
        self.source = table.source(discovery_seconds=1, clock=lambda: self.now, **options)
        self.enumerator = self.source.create_enumerator(1)
        self.enumerator.start()
        #: The numbers of all rows that were read.
        self.seen: list[int] = []

    def read(self) -> list[int]:
        """Return the numbers of the rows that are found now."""
        self.now += 5
        numbers: list[int] = []
        while (split := self.enumerator.next_split(0)) is not None:
            reader = self.source.create_reader(ReaderContext("u", 0, 1))
            reader.open(split, None)
            finished = False
            while not finished:
                read = reader.read(100)
                finished = read.finished
                if len(read.records):
                    numbers += [row["n"] for row in read.records.to_pylist()]
                    self.seen += numbers[len(numbers) - len(read.records) :]
            reader.close()
        return sorted(numbers)

    def restart(self) -> None:
        state = self.enumerator.snapshot()
        self.enumerator = self.source.create_enumerator(2)
        self.enumerator.restore(state)


def later() -> datetime.datetime:
    """Wait until the clock shows some milliseconds more, and return the time."""
    enough = datetime.datetime.now(datetime.UTC) + datetime.timedelta(milliseconds=5)
    wait_until(lambda: datetime.datetime.now(datetime.UTC) > enough, "the clock goes on")
    return datetime.datetime.now(datetime.UTC)


def rows_of(source: Any) -> list[int]:
    return sorted(row["n"] for row in read_rows(source))


def test_a_program_reads_rows(table: Any):
    table.append(1, 2, 3)
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_source(table.source()).map(lambda row: row["n"])
    assert sorted(numbers.execute_and_collect()) == [1, 2, 3]


def test_a_version_or_a_time_is_read_as_it_was(table: Any):
    table.append(1, 2)
    version = table.version()
    then = later()
    later()
    table.append(3)
    assert rows_of(table.source(version=version)) == [1, 2]
    assert rows_of(table.source(timestamp=then)) == [1, 2]
    assert rows_of(table.source()) == [1, 2, 3]
    table.delete()
    assert rows_of(table.source(["n"])) == [2, 3]
    assert rows_of(table.source(version=version)) == [1, 2]
    for options in ({"version": 12345}, {"timestamp": datetime.datetime(1999, 1, 1)}):
        with pytest.raises(GraphError, match=r"12345|1999|snapshot"):
            table.source(**options).validate()
    with pytest.raises(GraphError, match="price"):
        table.source(["price"]).validate()


def test_new_commits_are_read_once_over_restarts(table: Any):
    table.append(1)
    run = Run(table)
    assert run.read() == [1]
    table.append(2)
    table.append(3, 4)
    run.restart()
    assert run.read() == [2, 3, 4]
    run.restart()
    assert run.read() == []
    assert not run.enumerator.exhausted
    only_new = Run(table, only_new=True)
    assert only_new.read() == []
    table.append(5)
    assert only_new.read() == [5]


def test_commits_that_remove_rows_are_refused_or_skipped(
    table: Any, caplog: pytest.LogCaptureFixture
):
    table.append(1, 2)
    run, lenient = Run(table), Run(table, on_rewrite="skip")
    assert run.read() == lenient.read() == [1, 2]
    table.append(3)
    table.delete()
    table.append(4)
    with pytest.raises(JobError, match=r"removes or changes rows .*on_rewrite='skip'") as info:
        run.read()
    assert sorted(run.seen) == [1, 2, 3]
    assert info.value.recoverability is Recoverability.NON_RECOVERABLE
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        assert lenient.read() == [3, 4]
    assert "removes or changes rows" in caplog.text and "the commit is skipped" in caplog.text


def test_wrong_arguments_are_refused(table: Any):
    for options, message in (
        ({"on_rewrite": "ignore"}, "on_rewrite of a"),
        ({"only_new": True}, "only_new=True needs discovery_seconds"),
        ({"discovery_seconds": 0}, "discovery_seconds is positive"),
        ({"version": 1, "timestamp": datetime.datetime(2026, 1, 1)}, "not with both"),
        ({"timestamp": "2026-01-01"}, "is a datetime"),
        ({"columns": "n"}, "columns is a list"),
    ):
        with pytest.raises(GraphError, match=message):
            table.source(**options)


# ---- Delta


def test_files_that_are_only_arranged_are_passed_over(tmp_path: Path):
    table = Delta(tmp_path)
    run = Run(table)
    for n in range(3):
        table.append(n)
    assert run.read() == [0, 1, 2]
    metrics = deltalake.DeltaTable(table.path).optimize.compact()
    assert metrics["numFilesAdded"] == 1
    table.append(3)
    assert run.read() == [3]
    deltalake.DeltaTable(table.path).create_checkpoint()


def test_partitions_of_each_type_and_added_columns_are_read(tmp_path: Path):
    values = {
        "text": ["a b/c", None, "x=%1"],
        "whole": pa.array([1, None, -3], pa.int32()),
        "day": [datetime.date(2026, 1, 2), None, datetime.date(1, 1, 1)],
        "flag": [True, None, False],
        "price": [Decimal("1.50"), None, Decimal("2.25")],
        "at": pa.array([1_000_001, None, -5], pa.timestamp("us", "UTC")),
    }
    rows = pa.table({"n": [0, 1, 2], **values})
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, rows, partition_by=list(values))
    more = rows.slice(0, 1).append_column("extra", pa.array(["e"]))
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    first = read_rows(DeltaSource(path, version=0))
    assert sorted(first, key=lambda row: row["n"]) == rows.to_pylist()
    newest = read_rows(DeltaSource(path, ["n", "extra", "text"]))
    last = sorted(newest, key=lambda row: (row["n"], str(row["extra"])))
    assert [row["extra"] for row in last] == [None, "e", None, None]
    assert last[0]["text"] == "a b/c"


def test_a_log_that_was_shortened_or_replaced_is_refused(tmp_path: Path):
    table = Delta(tmp_path)
    run = Run(table)
    assert run.read() == []
    for n in range(3):
        table.append(n)
    deltalake.DeltaTable(table.path).create_checkpoint()
    for number in range(3):
        (table.path / f"_delta_log/{number:020d}.json").unlink()
    with pytest.raises(JobError, match=r"no longer has version 1, and its newest is 3"):
        run.read()
    import shutil

    shutil.rmtree(table.path)
    create_delta(table.path)
    with pytest.raises(JobError, match="another table"):
        run.read()


def test_a_file_that_was_removed_is_named(tmp_path: Path):
    table = Delta(tmp_path)
    table.append(1)
    run = Run(table)
    for path in table.path.glob("*.parquet"):
        path.unlink()
    with pytest.raises(JobError, match=r"a file of version 1 of the table, was removed: VACUUM"):
        run.read()


def test_a_table_that_does_not_exist_is_said(tmp_path: Path):
    with pytest.raises(GraphError, match="there is no Delta table in"):
        DeltaSource(tmp_path / "none").validate()


# ---- Iceberg


def test_renamed_columns_and_partitions_are_read(tmp_path: Path):
    from pyiceberg.transforms import BucketTransform

    table = Iceberg(tmp_path)
    made = table.catalog.table("t")
    table.append(1)
    with made.update_spec() as spec:
        spec.add_field("n", BucketTransform(4), "n_bucket")
    run = Run(table)
    with table.catalog.table("t").update_schema() as schema:
        schema.rename_column("key", "name")
    table.catalog.append("t", [{"name": "z", "n": 2}])
    assert run.read() == [1, 2]
    rows = read_rows(table.source())
    assert sorted((row["name"], row["n"]) for row in rows) == [("k", 1), ("z", 2)]
    table.catalog.close()


def test_a_snapshot_that_expired_is_refused(tmp_path: Path):
    table = Iceberg(tmp_path)
    run = Run(table)
    table.append(1)
    table.append(2)
    first = table.catalog.table("t").snapshots()[0].snapshot_id
    table.catalog.table("t").maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(JobError, match=r"not among the ancestors of its current one"):
        run.read()
    table.catalog.close()


def test_the_schema_of_the_tests_is_that_of_the_rows():
    assert pa.Table.from_pylist(ROWS, SCHEMA).to_pylist() == ROWS
