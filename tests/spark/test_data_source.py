"""Snapshots and committed output, read by Spark: equal to what the job computed."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json

from penstock import (
    CsvRows,
    FileSink,
    GraphError,
    KeyedProcessFunction,
    StoreError,
    StreamExecutionEnvironment,
    TextLines,
    ValueStateDescriptor,
)
from penstock.connectors.spark.data_source import PenstockDataSource
from penstock.connectors.spark.published import last_whole_snapshot, list_output
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.client.executor import LocalExecutor
from penstock.saved.json_values import as_json
from penstock.saved.state_parts import find_state, read_part
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    PATIENCE,
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
)
from tests.processes.parts import let_all_go
from tests.snapshot.state.test_golden_states import ENTRIES, GOLDEN

COLUMNS = [
    "operator",
    "state",
    "kind",
    "key_group",
    "key",
    "part",
    "value",
    "last_used_ms",
    "subtask",
    "snapshot",
]


@pytest.fixture(scope="module")
def reader(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(PenstockDataSource)
    return spark


@pytest.fixture(scope="module", params=[0, 1 << 20], ids=["RocksDB", "inline"])
def counted(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A job that has ended."""
    folder = tmp_path_factory.mktemp("counted")
    settings = Settings(folder, count=20_000, rate=None, inline_threshold=request.param)
    run(counting_job(settings))
    return settings


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A job that has ended, whose last snapshot is its only one and so holds all of its output.

    With others before, the last record may have come before the last of them.
    """
    folder = tmp_path_factory.mktemp("at_once")
    settings = Settings(folder, count=2_000, rate=None, interval_ms=600_000)
    run(counting_job(settings))
    return settings


def snapshot_files(settings: Settings) -> dict[str, int]:
    found = (settings.job / "checkpoints").rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found}


def test_state_is_what_the_job_computed(reader: SparkSession, counted: Settings):
    before = snapshot_files(counted)
    frame = reader.read.format("penstock").load(str(counted.job))
    assert frame.columns == COLUMNS
    rows = frame.collect()
    state = {json.loads(row.key): json.loads(row.value) for row in rows}
    assert len(state) == len(rows)
    assert state == {word: [word, n] for word, n in expected_words(counted).items()}
    newest = Store(counted.job).newest()
    assert newest is not None
    assert {row.snapshot for row in rows} == {newest.number}
    assert {row.operator for row in rows} == {"count"}
    for handle in newest.handles:
        if handle.keyed is not None:
            mine = {row.key_group for row in rows if row.subtask == handle.subtask}
            assert mine <= set(range(handle.keyed.first_group, handle.keyed.end_group))
    assert snapshot_files(counted) == before, "reading has changed the snapshot"


def test_state_has_types_if_a_schema_says_so(reader: SparkSession, counted: Settings):
    schema = "key string, value struct<word: string, n: long>, key_group int"
    frame = reader.read.format("penstock").schema(schema).load(str(counted.job))
    assert frame.columns == ["key", "value", "key_group"]
    counts = {row.key: row.n for row in frame.select("key", "value.n").collect()}
    assert counts == expected_words(counted)
    parsed = reader.read.format("penstock").load(str(counted.job))
    parsed = parsed.select(from_json("value", "array<string>").alias("pair"))
    assert {row.pair[0]: int(row.pair[1]) for row in parsed.collect()} == expected_words(counted)


@pytest.mark.parametrize("form", ["inline", "blocks", "rows", "sqlite-blocks", "sqlite-rows"])
def test_every_kind_of_state_can_be_read(reader: SparkSession, form: str):
    rows = reader.read.format("penstock").load(str(GOLDEN / form)).collect()
    found = {(row.state, row.kind, row.key, row.part, row.value, row.last_used_ms) for row in rows}
    assert len(found) == len(rows)
    assert found == {
        (state, kind, as_json(key), None if part is None else as_json(part), as_json(value), used)
        for state, kind, key, part, value, used in ENTRIES
    }
    typed = reader.read.format("penstock").options(state="recent")
    typed = typed.schema("key string, part string, value string").load(str(GOLDEN / form))
    assert [tuple(row) for row in typed.collect()] == [("b", "page", "/a")]


def test_any_snapshot_can_be_chosen(reader: SparkSession, counted: Settings):
    numbers = [info.number for info in Store(counted.job).list()]
    read = reader.read.format("penstock")
    for options in (
        {"path": str(counted.job), "snapshot": str(numbers[-1])},
        {"path": str(counted.job / "checkpoints" / f"{numbers[-1]:06d}"), "operator": "count"},
    ):
        rows = read.options(**options).load().collect()
        assert {row.snapshot for row in rows} == {numbers[-1]}


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Reading:
    at: datetime
    amount: Decimal
    tags: set[str]


class Remember(KeyedProcessFunction):
    """Two states, one of them with a class of the job's own."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        at = datetime(2026, 1, 1 + value, tzinfo=UTC)
        self.last.update(Reading(at, Decimal(value) / 4, {"b", "a"}))
        yield value


@pytest.mark.parametrize("inline_threshold", [0, 1 << 20])
def test_states_with_classes_of_the_job_are_read_without_its_code(
    tmp_path: Path, inline_threshold: int
):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.register_type(Point, Reading)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    env.get_checkpoint_config().set_inline_threshold(inline_threshold)
    keyed = env.from_collection(list(range(8))).key_by(lambda i: Point(i % 2, 7))
    keyed.process(Remember()).uid("remember").print()
    run(env)
    entries = [entry for part in find_state(tmp_path / "job") for entry in read_part(part)]
    assert {(e.state, e.key, e.value) for e in entries if e.state == "seen"} == {
        ("seen", (0, 7), 4),
        ("seen", (1, 7), 4),
    }
    last = {e.key: e.value for e in entries if e.state == "last"}
    assert last[(1, 7)] == (datetime(2026, 1, 8, tzinfo=UTC), Decimal("1.75"), {"a", "b"})
    assert as_json(last[(1, 7)]) == '["2026-01-08T00:00:00+00:00", "1.75", ["a", "b"]]'
    only = [e for part in find_state(tmp_path / "job", state="seen") for e in read_part(part)]
    assert {e.state for e in only} == {"seen"} and len(only) == 2
    with pytest.raises(GraphError, match="no state 'sen'; it holds, by uid: remember: last, seen"):
        find_state(tmp_path / "job", state="sen")
    with pytest.raises(GraphError, match="uid 'rember'"):
        find_state(tmp_path / "job", operator="rember")


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    settings = Settings(tmp_path, count=2000, rate=None, inline_threshold=0)
    run(counting_job(settings))
    parts = find_state(settings.job)
    files = KeyedHandle.from_wire(parts[0].handle).files
    victim = Path(parts[0].folder) / next(f.name for f in files if f.name.endswith(".sst"))
    victim.unlink()
    with pytest.raises(StoreError, match=victim.name):
        list(read_part(parts[0]))
    with pytest.raises(StoreError, match=victim.name):
        find_state(settings.job)


def test_values_as_json():
    assert as_json({"a": (1, None), "b": b"\x00\xff"}) == '{"a": [1, null], "b": "AP8="}'
    assert as_json({1: "x", "1": "y"}) == '[[1, "x"], ["1", "y"]]'
    assert as_json([True, 1.5, 2**70, "é", range(3)]) == f'[true, 1.5, {2**70}, "é", "range(0, 3)"]'


# ---- output


def test_output_is_what_was_committed(reader: SparkSession, counted: Settings):
    frame = reader.read.format("penstock").load(str(counted.output))
    rows = frame.collect()
    assert frame.columns == ["snapshot", "subtask", "value"]
    records = [json.loads(row.value) for row in rows]
    assert lost_and_doubled(records, expected_words(counted)) == (0, 0)
    first = min(row.snapshot for row in rows)
    until = reader.read.format("penstock").option("snapshot", str(first))
    assert {row.snapshot for row in until.load(str(counted.output)).collect()} == {first}
    words = frame.select(from_json("value", "array<string>")[0].alias("word")).groupBy("word")
    assert {row.word: row["count"] for row in words.count().collect()} == expected_words(counted)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (TextLines(), "a\u2028b,1"),
        (CsvRows(fields=["s", "n"]), '{"s": "a\\nb", "n": "1"}'),
    ],
    ids=["text", "CSV"],
)
def test_lines_and_rows_are_read_whole(
    reader: SparkSession, tmp_path: Path, format: Any, expected: str
):
    env = StreamExecutionEnvironment.get_execution_environment()
    record: Any = "a\u2028b,1" if isinstance(format, TextLines) else ("a\nb", 1)
    env.from_collection([record]).sink_to(FileSink(tmp_path / "out", format))
    run(env)
    rows = reader.read.format("penstock").load(str(tmp_path / "out")).collect()
    assert [row.value for row in rows] == [expected]


def run_part(settings: Settings, snapshots: int, resume: str | None = None) -> None:
    """Run the counting job and stop it after some snapshots."""
    env = counting_job(settings)
    job = LocalExecutor().start(env._program("counting"), RunOptions(resume=resume))
    taken = 0
    for event in job.events():
        taken += event["event"] == "snapshot"
        if taken == snapshots:
            job.stop()
    job.wait()


def patiently(ask: Callable[[], Any]) -> Any:
    """What a query of a stream gives.

    Spark waits ten seconds for the Python process of a stream to start and to import what it needs,
    which cannot be set. With thirty other processes that is not enough on a slow machine, so the
    query is asked until others have ended.
    """
    until = time.monotonic() + 5 * PATIENCE
    while True:
        try:
            return ask()
        except Exception as error:
            if "failed to connect back" not in str(error) or time.monotonic() > until:
                raise


def test_a_stream_follows_the_output_over_stops_of_both(reader: SparkSession, tmp_path: Path):
    settings = Settings(tmp_path, count=40_000, rate=40_000, interval_ms=50, parts=2)
    run_part(settings, 4)

    def follow() -> tuple[list[Any], dict[str, Any]]:
        stream = (
            reader.readStream.format("penstock")
            .option("checkpoint", str(settings.job))
            .load(str(settings.output))
        )
        query = (
            stream.writeStream.format("json")
            .option("path", str(tmp_path / "followed"))
            .option("checkpointLocation", str(tmp_path / "query"))
            .start()
        )
        try:
            query.processAllAvailable()
            progress = query.lastProgress
        finally:
            query.stop()
        rows = reader.read.schema(stream.schema).json(str(tmp_path / "followed")).collect()
        return rows, progress.sources[0].endOffset if progress is not None else {}

    first, offset = patiently(follow)
    number = Store(settings.job).newest().number
    assert json.loads(str(offset).replace("'", '"')) == {"snapshot": number}
    assert Counter(row.value for row in first) == Counter(
        json.dumps(record) for record in committed(settings.output)
    )
    let_all_go(settings.gate)
    with run_options(RunOptions(resume="newest")):
        counting_job(settings).execute("counting")
    rows, _ = patiently(follow)
    assert len(rows) > len(first) > 0
    records = [json.loads(row.value) for row in rows]
    assert lost_and_doubled(records, expected_words(settings)) == (0, 0)


def test_a_snapshot_is_followed_only_when_all_of_its_files_are_there(
    counted: Settings, at_once: Settings
):
    for settings in (counted, at_once):
        newest = Store(settings.job).newest()
        assert newest is not None
        assert last_whole_snapshot(settings.output, settings.job) == newest.number
        files = list_output(settings.output)
        last = [file for file in files if file.snapshot == files[-1].snapshot]
        before = max((f.snapshot for f in files if f.snapshot < last[0].snapshot), default=0)
        assert last_whole_snapshot(settings.output, None) == before
    held = {item.payload["target"] for item in newest.committables}
    victim = next(Path(file.path) for file in last if Path(file.path).name in held)
    hidden = victim.rename(victim.with_name("_hidden"))
    try:
        # As after a crash between two links of one commit.
        assert last_whole_snapshot(at_once.output, at_once.job) == last[0].snapshot - 1
    finally:
        hidden.rename(victim)


def test_a_sink_is_known_again_by_another_path(at_once: Settings, tmp_path: Path):
    newest = Store(at_once.job).newest()
    assert newest is not None
    spelt = [tmp_path / "link", at_once.output / ".." / at_once.output.name]
    spelt[0].symlink_to(at_once.output)
    held = {item.payload["target"] for item in newest.committables}
    assert held
    victim = at_once.output / held.pop()
    # As if nothing of the snapshot were published, and on a machine that mounts it elsewhere.
    moved = tmp_path / "mounted"
    moved.mkdir()
    for file in list_output(at_once.output):
        if file.path != str(victim):
            (moved / Path(file.path).name).hardlink_to(file.path)
    hidden = victim.rename(victim.with_name("_hidden"))
    try:
        for folder in (*spelt, moved):
            assert last_whole_snapshot(folder, at_once.job) == newest.number - 1
    finally:
        hidden.rename(victim)


def test_the_checkpoints_of_a_job_that_does_not_write_there_are_refused(
    at_once: Settings, tmp_path: Path
):
    # Before there is anything, nothing can be told, and nothing read either.
    Store(tmp_path / "job").open("counting")
    assert last_whole_snapshot(tmp_path / "nothing", tmp_path / "job") == 0
    assert last_whole_snapshot(tmp_path, at_once.job) == 0
    (tmp_path / "part-0000000003-00000-0001-files-0123456789.txt").write_text("x\n")
    with pytest.raises(GraphError, match=r"no output in .* is of the job 'counting'"):
        last_whole_snapshot(tmp_path, at_once.job)


def test_two_sinks_in_one_folder_need_the_checkpoint_folder(tmp_path: Path):
    for tag in ("0123456789", "abcdef0123"):
        (tmp_path / f"part-0000000003-00000-0001-uid-{tag}.txt").write_text("x\n")
    with pytest.raises(GraphError, match="option checkpoint"):
        last_whole_snapshot(tmp_path, None)


# ---- what is wrong is said


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({}, None, "reads from a folder"),
        ({"path": "JOB", "snapshot": "x"}, None, "is the number of a snapshot, not 'x'"),
        ({"path": "JOB", "snapsot": "1"}, None, "no option 'snapsot' for reading state"),
        ({"path": "JOB", "read": "all"}, None, "'state' or 'output', not 'all'"),
        ({"path": "JOB", "snapshot": "999999"}, None, "there is no complete snapshot 999999"),
        ({"path": "JOB", "operator": "cont"}, None, "by uid: count: "),
        ({"path": "JOB"}, "key string, n long", "there is no column 'n'"),
        ({"path": "JOB"}, "key long", "column .*key.*: its type is str, and int64 takes int"),
        ({"path": "OUT/nowhere"}, None, "output cannot be listed"),
        ({"path": "OUT"}, "word string", "from_json"),
        ({"path": "OUT"}, "snapshot string", "is of type bigint, not string"),
    ],
)
@pytest.mark.parametrize("counted", [0], ids=["RocksDB"], indirect=True)
def test_what_cannot_be_read_is_told(
    reader: SparkSession,
    counted: Settings,
    options: dict[str, str],
    schema: str | None,
    message: str,
):
    folders = {"JOB": str(counted.job), "OUT": str(counted.output)}
    for name, folder in folders.items():
        if "path" in options:
            options = {**options, "path": options["path"].replace(name, folder)}
    read = reader.read.format("penstock").options(**options)
    with pytest.raises(Exception, match=message):
        (read if schema is None else read.schema(schema)).load().collect()


@pytest.mark.parametrize("counted", [0], ids=["RocksDB"], indirect=True)
def test_state_is_not_followed(reader: SparkSession, counted: Settings):
    with pytest.raises(Exception, match="one snapshot at a time"):
        stream = reader.readStream.format("penstock").load(str(counted.job))
        patiently(lambda: stream.writeStream.format("noop").start().processAllAvailable())
