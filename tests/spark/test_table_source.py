"""Spark tables as sources: pinned once, and read again whatever happens to the table."""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock import (
    FileSink,
    GraphError,
    JobError,
    JsonLines,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.connectors.spark import SparkTableSource
from penstock.connectors.spark.source.pin import Pin, load_pin
from penstock.dataflow.source import Preparation, ReaderContext, SourceReader
from tests.processes.harness import Killer, committed, lost_and_doubled, run
from tests.processes.parts import Slow

ROWS = 10_000


@dataclass
class Trade:
    id: int
    name: str


class Pair(NamedTuple):
    name: str
    id: int


@pytest.fixture(autouse=True)
def no_tables_left(spark: SparkSession):
    yield
    for name in ("trades", "other"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.sql(f"DROP VIEW IF EXISTS {name}_view")


def trades(spark: SparkSession, count: int = ROWS, files: int = 3) -> DataFrame:
    """Rows with an id, a name that follows from it, and a number."""
    return spark.range(0, count, 1, files).select(
        "id", f.concat(f.lit("name"), f.col("id") % 10).alias("name"), (f.col("id") / 2).alias("x")
    )


def pinned(source: SparkTableSource, folder: Path, resuming: bool = False) -> Pin:
    """Prepare a source and load what it pinned."""
    source.prepare(Preparation(folder, resuming, attached=True))
    assert source._pin_id is not None
    return load_pin(folder / source._pin_id)


def read_split(reader: SourceReader, split: Any, position: Any = None, at_once: int = 4096) -> list:
    """Read a split from a position to its end."""
    reader.open(split, position)
    records: list = []
    while True:
        read = reader.read(at_once)
        assert len(read.records) <= at_once
        records += read.records
        if read.finished:
            reader.close()
            return records


def read_all(source: SparkTableSource, state: Any = None) -> list:
    """All records of a prepared source, from an enumerator's state on."""
    enumerator = source.create_enumerator(1)
    if state is None:
        enumerator.start()
    else:
        enumerator.restore(state)
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    records = []
    while (split := enumerator.next_split(0)) is not None:
        records += read_split(reader, split)
    assert enumerator.exhausted
    return records


def _ids(records: list) -> list[int]:
    return sorted(record["id"] for record in records)


def test_a_table_a_view_a_query_and_a_dataframe_give_the_same_rows(
    spark: SparkSession, tmp_path: Path
):
    trades(spark).write.saveAsTable("trades")
    spark.sql("CREATE TEMPORARY VIEW trades_view AS SELECT * FROM trades")
    sources = [
        SparkTableSource("trades"),
        SparkTableSource("trades_view"),
        SparkTableSource(query="SELECT * FROM trades"),
        SparkTableSource(spark.table("trades")),
    ]
    expected = [row.asDict() for row in spark.table("trades").orderBy("id").collect()]
    for index, source in enumerate(sources):
        pinned(source, tmp_path / str(index))
        assert sorted(read_all(source), key=lambda record: record["id"]) == expected


def test_columns_and_conditions_are_left_to_spark(spark: SparkSession, tmp_path: Path):
    trades(spark).write.saveAsTable("trades")
    source = SparkTableSource(
        "trades", columns=["name", "id"], where=["id < 30", f.col("name") == "name7"], as_="tuple"
    )
    pin = pinned(source, tmp_path)
    assert pin.schema.names == ["name", "id"]
    assert (pin.rows, pin.linked) == (3, False)
    assert sorted(read_all(source)) == [("name7", 7), ("name7", 17), ("name7", 27)]


@pytest.mark.parametrize(
    ("as_", "expected"),
    [
        ("dict", {"id": 1, "name": "name1"}),
        ("tuple", (1, "name1")),
        (Trade, Trade(1, "name1")),
        (Pair, Pair("name1", 1)),
    ],
)
def test_records_come_as_what_was_asked_for(
    spark: SparkSession, tmp_path: Path, as_: Any, expected: Any
):
    columns = None if isinstance(as_, type) else ["id", "name"]
    source = SparkTableSource(trades(spark, 2, 1), as_=as_, columns=columns)
    pinned(source, tmp_path)
    record = read_all(source)[1]
    assert record == expected
    assert type(record) is type(expected)


def test_rows_are_named_tuples_of_one_class_for_the_same_columns(
    spark: SparkSession, tmp_path: Path
):
    classes = set()
    for number in range(2):
        source = SparkTableSource(trades(spark, 2, 1), as_="row")
        pinned(source, tmp_path / str(number))
        row = read_all(source)[1]
        assert (row.id, row.name, row.x) == (1, "name1", 0.5) == row
        classes.add(type(row))
    assert classes == {source._row_class}
    odd = SparkTableSource(spark.sql("SELECT 1 AS `a b`"), as_="row")
    with pytest.raises(GraphError, match="as_='dict'"):
        pinned(odd, tmp_path / "odd")


def test_arrow_batches_are_records_of_their_own(spark: SparkSession, tmp_path: Path):
    source = SparkTableSource(trades(spark), as_="arrow", columns=["x", "id"])
    pinned(source, tmp_path)
    batches = read_all(source)
    assert sum(batch.num_rows for batch in batches) == ROWS
    assert batches[0].schema.names == ["x", "id"]


def test_the_files_of_a_plain_table_are_linked_and_stay(spark: SparkSession, tmp_path: Path):
    trades(spark).write.saveAsTable("trades")
    files = {Path(name.removeprefix("file:")) for name in spark.table("trades").inputFiles()}
    inodes = {path.stat().st_ino for path in files}
    source = SparkTableSource("trades", columns=["id"])
    pin = pinned(source, tmp_path)
    assert pin.linked
    assert {path.stat().st_ino for path in (pin.folder / "data").iterdir()} == inodes
    spark.sql("DROP TABLE trades")
    assert not any(path.exists() for path in files)
    assert _ids(read_all(source)) == list(range(ROWS))


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE trades",
        "INSERT OVERWRITE trades VALUES (100000, 'other', 1.0)",
        "ALTER TABLE trades ADD COLUMN more INT",
        "TRUNCATE TABLE trades",
    ],
)
@pytest.mark.parametrize("linked", [True, False])
def test_a_resumed_source_reads_its_pin_whatever_happened_to_the_table(
    spark: SparkSession, tmp_path: Path, change: str, linked: bool
):
    trades(spark).write.saveAsTable("trades")
    where = None if linked else "id >= 0"
    first = SparkTableSource("trades", where=where, as_="tuple")
    pin = pinned(first, tmp_path)
    assert pin.linked == linked
    enumerator = first.create_enumerator(1)
    enumerator.start()
    before = read_split(first.create_reader(ReaderContext("uid", 0, 1)), enumerator.next_split(0))
    spark.sql(change)
    # The program is run again and can't even find the table, or finds another.
    again = SparkTableSource("trades", where=where, as_="tuple")
    assert pinned(again, tmp_path, resuming=True) == pin
    after = read_all(again, enumerator.snapshot())
    assert sorted(record[0] for record in before + after) == list(range(ROWS))


def test_a_fork_into_another_folder_reads_the_pin_of_its_snapshot(
    spark: SparkSession, tmp_path: Path
):
    trades(spark).write.saveAsTable("trades")
    first = SparkTableSource("trades", as_="tuple")
    pin = pinned(first, tmp_path / "first")
    enumerator = first.create_enumerator(1)
    enumerator.start()
    state = enumerator.snapshot()
    # A later run of the same job has pinned another table by this name, and that is gone, too.
    spark.sql("INSERT OVERWRITE trades VALUES (100000, 'other', 1.0)")
    assert pinned(SparkTableSource("trades"), tmp_path / "first") != pin
    spark.sql("DROP TABLE trades")
    for folder in (tmp_path / "first", tmp_path / "fork"):
        again = SparkTableSource("trades", as_="tuple")
        again.prepare(Preparation(folder, resuming=True, attached=True, state=state))
        assert again._pin_id == pin.folder.name
        assert sorted(record[0] for record in read_all(again, state)) == list(range(ROWS))
    assert not (tmp_path / "fork").exists(), "it lies where it was"


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE trades USING parquet PARTITIONED BY (name) AS SELECT * FROM source",
        "CREATE TABLE trades USING orc AS SELECT * FROM source",
        "CREATE TABLE trades USING csv AS SELECT * FROM source",
    ],
)
def test_other_tables_are_written_anew(spark: SparkSession, tmp_path: Path, table: str):
    trades(spark).createOrReplaceTempView("source")
    spark.sql(table)
    source = SparkTableSource("trades", columns=["id", "name"], as_="tuple")
    assert not pinned(source, tmp_path).linked
    expected = sorted((row.id, row.name) for row in spark.table("trades").collect())
    assert sorted(read_all(source)) == expected


def test_a_table_with_an_evolved_schema_is_written_anew(spark: SparkSession, tmp_path: Path):
    trades(spark, 5, 1).write.saveAsTable("trades")
    spark.sql("ALTER TABLE trades ADD COLUMN more INT")
    spark.sql("INSERT INTO trades VALUES (5, 'name5', 2.5, 50)")
    source = SparkTableSource("trades", as_="tuple", columns=["id", "more"])
    assert not pinned(source, tmp_path).linked
    assert sorted(read_all(source)) == [*((i, None) for i in range(5)), (5, 50)]
    plain = SparkTableSource("trades", columns=["id"])
    assert pinned(plain, tmp_path / "plain").linked


def test_where_links_cannot_be_made_spark_writes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    trades(spark).write.saveAsTable("trades")
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = SparkTableSource("trades")
    assert not pinned(source, tmp_path).linked
    assert _ids(read_all(source)) == list(range(ROWS))


def test_a_pinned_file_that_was_written_to_is_refused(spark: SparkSession, tmp_path: Path):
    trades(spark, 10, 1).write.saveAsTable("trades")
    source = SparkTableSource("trades")
    pin = pinned(source, tmp_path)
    [name] = spark.table("trades").inputFiles()
    with Path(name.removeprefix("file:")).open("ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match="written to in place"):
        read_all(source)
    next((pin.folder / "data").iterdir()).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        read_all(source)


def test_a_split_is_read_on_from_any_row(spark: SparkSession, tmp_path: Path):
    seed = 3
    rng = random.Random(seed)
    # Three row groups in one split.
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "table"
    path.mkdir()
    pq.write_table(pa.table({"id": range(2500)}), path / "a.parquet", row_group_size=1000)
    source = SparkTableSource(spark.read.parquet(str(path)), as_="tuple")
    pin = pinned(source, tmp_path / "pins")
    assert pin.linked
    assert [(split.end_group, split.rows) for split in pin.splits] == [(3, 2500)]
    enumerator = source.create_enumerator(1)
    enumerator.start()
    split = enumerator.next_split(0)
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    for position in [0, 999, 1000, 1001, 2000, 2499, 2500, *rng.sample(range(2500), 10)]:
        records = read_split(reader, split, position, at_once=rng.choice([1, 7, 100, 4096]))
        assert records == [(i,) for i in range(position, 2500)], f"seed {seed}"


def test_folders_and_columns_may_have_any_name(spark: SparkSession, tmp_path: Path):
    folder = tmp_path / "a b%20ü#?[x]"
    frame = spark.sql("SELECT 1 AS `a.b`, 2 AS `ü ``c`")
    frame.write.parquet(f"file://{folder}/table")
    for name, options in (("linked", {}), ("written", {"where": "`a.b` = 1"})):
        source = SparkTableSource(
            spark.read.parquet(f"file://{tmp_path}/a b%20ü#?\\[x\\]/table"),
            columns=["ü `c", "a.b"],
            as_="tuple",
            **options,
        )
        assert pinned(source, folder / name).linked == (name == "linked")
        assert read_all(source) == [(2, 1)]


def test_an_empty_table_ends_at_once(spark: SparkSession, tmp_path: Path):
    for number, frame in enumerate((trades(spark).where("id < 0"), trades(spark, 0))):
        source = SparkTableSource(frame)
        assert pinned(source, tmp_path / str(number)).rows == 0
        assert read_all(source) == []


def test_unfinished_pins_and_those_of_dead_runs_are_no_pins(spark: SparkSession, tmp_path: Path):
    for _ in range(3):
        source = SparkTableSource(trades(spark, 5))
        pinned(source, tmp_path)
    unfinished = tmp_path / ".0001.x"
    unfinished.mkdir()
    enumerator = source.create_enumerator(1)
    enumerator.start()
    old = sorted(path.name for path in tmp_path.glob("[0-9]*"))
    assert len(old) == 3
    state = {**enumerator.snapshot(), "pin": old[0]}
    enumerator.retain([state, enumerator.snapshot()], [])
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == [old[0], old[2]]
    assert _ids(read_all(source)) == list(range(5))


def test_a_wrong_source_is_refused_where_it_is_made(spark: SparkSession, tmp_path: Path):
    for arguments, message in [
        ({}, "a table or a query"),
        ({"table": "a", "query": "b"}, "not both"),
        ({"table": 3}, "the name of a table"),
        ({"table": "a", "as_": "list"}, "as_ is one of"),
        ({"table": "a", "as_": int}, "a dataclass or a named tuple"),
        ({"table": "a", "as_": Trade, "columns": ["id"]}, "leave columns away"),
        ({"table": "a", "columns": "id"}, "columns is a list"),
        ({"table": "a", "where": 3}, "where is SQL"),
        ({"table": spark.readStream.format("rate").load()}, "SparkStreamSource"),
    ]:
        with pytest.raises(GraphError, match=message):
            SparkTableSource(**arguments)
    with pytest.raises(GraphError, match="'nowhere'"):
        pinned(SparkTableSource("nowhere"), tmp_path)
    with pytest.raises(GraphError, match="interval"):
        pinned(SparkTableSource(query="SELECT make_interval(1) AS i"), tmp_path)
    with pytest.raises(GraphError, match="two columns have the name 'a'"):
        pinned(SparkTableSource(query="SELECT 1 AS a, 2 AS a"), tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is left of a pin that failed"


# ---- whole jobs


def counting(spark: SparkSession, folder: Path, table: str, **options: Any) -> Any:
    """Counts the names of a table, like the counting job of the harness."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    rows = env.from_source(SparkTableSource(table, as_="tuple", **options)).uid("table")
    # 40 seconds for each half of the 40,000 rows, until the last kill.
    slowed = rows.map(Slow(0.002, folder / "gate"))
    pairs = slowed.map(lambda row: (row[1], 1)).key_by(lambda pair: pair[0])
    counted = pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("count")
    counted.sink_to(FileSink(folder / "out", JsonLines())).uid("files")
    return env


@pytest.mark.parametrize(("linked", "target"), [(True, "worker"), (False, "jobmanager")])
def test_a_killed_job_reads_the_very_same_rows_though_the_table_is_gone(
    spark: SparkSession, tmp_path: Path, linked: bool, target: str
):
    seed, count = 4, 40_000
    trades(spark, count, 8).write.saveAsTable("trades")
    where = None if linked else "id >= 0"
    expected = Counter({f"name{i}": count // 10 for i in range(10)})
    killer = Killer(random.Random(seed), kills=2, targets=(target,), gate=tmp_path / "gate")
    dropped = False

    def progress(event: dict[str, Any]) -> None:
        nonlocal dropped
        if event["event"] == "running" and not dropped:
            dropped = True
            spark.sql("DROP TABLE trades")
        killer(event)

    resume = None
    for _ in range(20):
        try:
            run(counting(spark, tmp_path, "trades", where=where), resume=resume, progress=progress)
            break
        except StoreError as error:
            assert "killed by signal 9" in str(error)
        finally:
            killer.disarm()
        resume = "newest"
    assert dropped
    assert len(killer.killed) == 2, f"seed {seed}"
    assert lost_and_doubled(committed(tmp_path / "out"), expected) == (0, 0)


def test_a_job_without_a_folder_pins_into_one_of_its_own(spark: SparkSession):
    trades(spark, 100).write.saveAsTable("trades")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    with env.from_source(SparkTableSource("trades", as_="row")).execute_and_collect() as rows:
        assert sorted(row.id for row in rows) == list(range(100))


def test_an_error_of_a_record_class_names_the_row(spark: SparkSession, tmp_path: Path):
    source = SparkTableSource(trades(spark, 3, 1), as_=Picky)
    pinned(source, tmp_path)
    with pytest.raises(JobError, match="cannot be made"):
        read_all(source)


@dataclass
class Picky:
    id: int

    def __post_init__(self) -> None:
        if self.id > 1:
            raise ValueError("too much")
