"""Streams of Spark as sources: no row is lost or read twice, whichever checkpoint is cut off."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import (
    FileSink,
    GraphError,
    JobError,
    JsonLines,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.connectors.spark import SparkStreamSource
from penstock.connectors.spark.source import query_runner
from penstock.connectors.spark.source.batch_folder import BatchFolder
from penstock.dataflow.source import Preparation, ReaderContext, SplitEnumerator
from tests.processes.harness import PATIENCE, Killer, committed, lost_and_doubled, run, wait_until
from tests.spark.test_table_source import read_split


class Feed:
    """A folder of JSON files that Spark reads as a stream, one file to a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._hidden = folder.parent / f".{folder.name}"
        folder.mkdir()
        self._hidden.mkdir()
        self.files = 0
        self.ids: list[int] = []

    def add(self, count: int = 10) -> None:
        """Add a file with the next `count` ids."""
        first = len(self.ids)
        ids = list(range(first, first + count))
        path = self._hidden / f"{self.files:05d}.json"
        path.write_text("".join(json.dumps({"id": i, "name": f"name{i % 7}"}) + "\n" for i in ids))
        # Spark takes files by their times, which may be the same for two.
        seconds = 1_700_000_000 + self.files
        os.utime(path, (seconds, seconds))
        path.rename(self._folder / path.name)
        self.files += 1
        self.ids += ids

    def stream(self) -> DataFrame:
        """The stream over the files that are there and those to come."""
        reader = self._spark.readStream.schema("id BIGINT, name STRING")
        return reader.option("maxFilesPerTrigger", 1).json(str(self._folder))


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


@pytest.fixture
def prepared(tmp_path: Path) -> Any:
    """Prepares sources, and releases those that the test did not."""
    sources: list[SparkStreamSource] = []

    def prepare(source: SparkStreamSource, resuming: bool = False) -> SplitEnumerator:
        sources.append(source)
        source.prepare(Preparation(tmp_path / "source", resuming, attached=True))
        return source.create_enumerator(1)

    yield prepare
    for source in sources:
        source.release()


def read(source: SparkStreamSource, enumerator: SplitEnumerator, count: int) -> list[int]:
    """Read at least so many ids, as they come."""
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    ids: list[int] = []

    def more() -> bool:
        while (split := enumerator.next_split(0)) is not None:
            ids.extend(record[0] for record in read_split(reader, split))
        return len(ids) >= count

    wait_until(more, f"{count} rows; there are {len(ids)}")
    return ids


def stage_of(source: SparkStreamSource) -> BatchFolder:
    assert source._folder is not None
    return BatchFolder(source._folder / str(source._stage_id))


def test_batches_are_read_as_they_come_and_the_end_is_told(feed: Feed, prepared: Callable):
    for _ in range(3):
        feed.add()
    source = SparkStreamSource(feed.stream(), as_="tuple", available_now=True)
    enumerator = prepared(source)
    enumerator.start()
    assert read(source, enumerator, 30) == feed.ids

    def ended() -> bool:
        assert enumerator.next_split(0) is None
        return enumerator.exhausted

    wait_until(ended, "the end of the stream")
    source.release()


def test_spark_waits_while_too_many_batches_are_unread(feed: Feed, prepared: Callable):
    for _ in range(6):
        feed.add()
    source = SparkStreamSource(feed.stream(), as_="tuple", max_unread_batches=2)
    enumerator = prepared(source)
    stage = stage_of(source)
    seen: set[int] = set()

    def third_is_planned() -> bool:
        seen.add(stage.unread())
        return (stage.checkpoint / "offsets" / "2").exists()

    wait_until(third_is_planned, "a third batch")
    enumerator.start()
    ids: list[int] = []
    reader = source.create_reader(ReaderContext("uid", 0, 1))

    def all_read() -> bool:
        seen.add(stage.unread())
        split = enumerator.next_split(0)
        if split is not None:
            ids.extend(record[0] for record in read_split(reader, split))
        return len(ids) == 60

    wait_until(all_read, "60 rows")
    assert ids == feed.ids
    assert max(seen) == 2


def test_one_unread_batch_is_enough_to_go_on(feed: Feed, prepared: Callable):
    for _ in range(3):
        feed.add()
    source = SparkStreamSource(feed.stream(), as_="tuple", max_unread_batches=1)
    enumerator = prepared(source)
    enumerator.start()
    assert read(source, enumerator, 30) == feed.ids


def test_a_batch_that_spark_repeats_is_not_written_again(feed: Feed, prepared: Callable):
    for _ in range(3):
        feed.add()
    first = SparkStreamSource(feed.stream(), as_="tuple")
    enumerator = prepared(first)
    enumerator.start()
    before = read(first, enumerator, 30)
    state = enumerator.snapshot()
    stage = stage_of(first)
    # Spark's checkpoint forgets the last two batches, as if it had been killed.
    commits = stage.checkpoint / "commits"
    wait_until((commits / "2").exists, "the end of the third batch")
    first.release()
    for number in (1, 2):
        for path in commits.glob(f"*{number}*"):
            path.unlink()
    # And the job has removed the second of the three, and keeps the third.
    stage.remove_below(2)
    third = stage.batch(2) / "pin.json"
    written = third.stat().st_mtime_ns
    feed.add()
    again = SparkStreamSource(feed.stream(), as_="tuple")
    enumerator = prepared(again, resuming=True)
    enumerator.restore(state)
    assert before + read(again, enumerator, 10) == feed.ids
    assert stage.numbers() == [2, 3]
    assert third.stat().st_mtime_ns == written


def test_a_batch_that_was_not_published_comes_again(
    feed: Feed, prepared: Callable, monkeypatch: pytest.MonkeyPatch
):
    feed.add()
    feed.add()
    calls: list[str] = []
    begun: list[query_runner.StreamingQueryRunner] = []
    first_read, failure_told = threading.Event(), threading.Event()

    def fail(frame: DataFrame, folder: Path, *, link: bool) -> None:
        calls.append(folder.name)
        if len(calls) == 2:
            # Else who reads the first batch might hear of it.
            first_read.wait(PATIENCE)
            raise OSError("no space left")
        make_pin(frame, folder, link=link)

    def begin_later(self: query_runner.StreamingQueryRunner) -> Any:
        if begun:
            failure_told.wait(PATIENCE)
        begun.append(self)
        return begin(self)

    make_pin, begin = query_runner.make_pin, query_runner.StreamingQueryRunner._begin
    monkeypatch.setattr(query_runner, "make_pin", fail)
    monkeypatch.setattr(query_runner.StreamingQueryRunner, "_begin", begin_later)
    monkeypatch.setattr(query_runner, "FIRST_PAUSE_SECONDS", 0.001)
    source = SparkStreamSource(feed.stream(), as_="tuple")
    enumerator = prepared(source)
    enumerator.start()
    ids = read(source, enumerator, 10)
    first_read.set()
    stage = stage_of(source)
    told = wait_until(lambda: stage.reported("failed"), "the failure")
    assert "no space left" in told
    # The job fails, and goes on when the query runs again.
    with pytest.raises(JobError, match="the streaming query failed"):
        enumerator.next_split(0)
    failure_told.set()
    wait_until(lambda: stage.reported("failed") is None, "the query to run again")
    assert ids + read(source, enumerator, 10) == feed.ids
    assert calls == ["000000000000", "000000000001", "000000000001"]


def test_an_enumerator_goes_on_within_a_batch_and_after_one(
    spark: SparkSession, feed: Feed, prepared: Callable
):
    feed.add(40)
    feed.add(10)
    # Two files, and so two splits, in a batch.
    stream = feed.stream().repartition(2, "id")
    source = SparkStreamSource(stream, as_="tuple", available_now=True)
    enumerator = prepared(source)
    enumerator.start()
    wait_until(lambda: stage_of(source).reported("ended") is not None, "the end")
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    read_before: list[int] = []
    states = [(enumerator.snapshot(), 0)]
    while (split := enumerator.next_split(0)) is not None:
        read_before += [record[0] for record in read_split(reader, split)]
        states.append((enumerator.snapshot(), len(read_before)))
    assert len(states) == 5
    for state, done in states:
        other = source.create_enumerator(1)
        other.restore(state)
        assert read_before[:done] + read(source, other, 50 - done) == read_before
    assert sorted(read_before) == feed.ids


def test_an_empty_batch_is_passed_over(feed: Feed, prepared: Callable):
    feed.add(3)
    feed.add(30)
    source = SparkStreamSource(feed.stream().where("id > 5"), as_="tuple")
    enumerator = prepared(source)
    enumerator.start()
    assert read(source, enumerator, 27) == feed.ids[6:]


def test_batches_that_no_snapshot_needs_are_removed(feed: Feed, prepared: Callable):
    for _ in range(4):
        feed.add()
    source = SparkStreamSource(feed.stream(), as_="tuple")
    enumerator = prepared(source)
    enumerator.start()
    stage = stage_of(source)
    states, splits = [], []
    for _ in range(3):
        splits.append(wait_until(lambda: enumerator.next_split(0), "a batch"))
        states.append(enumerator.snapshot())
    wait_until(lambda: stage.numbers() == [0, 1, 2, 3], "four batches")
    enumerator.retain(states[1:], [splits[1]])
    assert stage.numbers() == [1, 2, 3]
    enumerator.retain(states[1:], [splits[2]])
    assert stage.numbers() == [2, 3]
    enumerator.retain([], [])
    assert stage.numbers() == [2, 3]
    assert stage.has(0)
    assert not stage.has(4)
    fresh = source.create_enumerator(1)
    with pytest.raises(JobError, match="resume it from its newest snapshot"):
        fresh.start()


def test_a_snapshot_of_another_run_of_the_stream_is_refused(feed: Feed, prepared: Callable):
    source = SparkStreamSource(feed.stream())
    enumerator = prepared(source)
    with pytest.raises(GraphError, match="resume the job in its own folder"):
        enumerator.restore({"stage": "another", "batch": 0, "split": 0})


def test_a_fork_into_another_folder_starts_no_query(feed: Feed, tmp_path: Path):
    source = SparkStreamSource(feed.stream())
    state = {"stage": "another", "batch": 0, "split": 0}
    with pytest.raises(GraphError, match="resume the job in its own folder"):
        source.prepare(Preparation(tmp_path / "fork", True, attached=True, state=state))
    source.release()
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize(
    "stage", ["{elsewhere}", "../elsewhere", "1700000000000-0badcafe", ".", "", 7, None]
)
def test_a_snapshot_leads_no_stream_out_of_its_folder(feed: Feed, tmp_path: Path, stage: object):
    elsewhere, own = tmp_path / "elsewhere", tmp_path / "source"
    (elsewhere / "batches").mkdir(parents=True)
    (elsewhere / "ended").write_text("mine")
    own.mkdir()
    (own / "1700000000000-0badcafe").symlink_to(elsewhere)
    source = SparkStreamSource(feed.stream())
    stage = stage.format(elsewhere=elsewhere) if isinstance(stage, str) else stage
    state = {"stage": stage, "batch": 0, "split": 0}
    with pytest.raises(GraphError, match="resume the job in its own folder"):
        source.prepare(Preparation(own, True, attached=True, state=state))
    source.release()
    assert sorted(p.name for p in elsewhere.iterdir()) == ["batches", "ended"]


def test_a_resumed_stream_goes_on_with_the_stage_of_its_snapshot(
    feed: Feed, prepared: Callable, tmp_path: Path
):
    first = SparkStreamSource(feed.stream())
    state = prepared(first).snapshot()
    first.release()
    later = SparkStreamSource(feed.stream())
    prepared(later)
    again = SparkStreamSource(feed.stream())
    again.prepare(Preparation(tmp_path / "source", True, attached=True, state=state))
    assert again._stage_id == first._stage_id != later._stage_id
    again.release()


def test_two_programs_cannot_feed_one_job(feed: Feed, prepared: Callable):
    source = SparkStreamSource(feed.stream())
    prepared(source)
    with pytest.raises(StoreError, match="another program runs the streaming query"):
        prepared(SparkStreamSource(feed.stream()), resuming=True)


@pytest.mark.parametrize("removed", [False, True], ids=["batches", "batches removed"])
def test_a_checkpoint_that_the_batches_were_not_made_with_is_refused(
    feed: Feed, prepared: Callable, tmp_path: Path, removed: bool
):
    feed.add()
    feed.add()
    first = SparkStreamSource(feed.stream(), as_="tuple")
    enumerator = prepared(first)
    enumerator.start()
    read(first, enumerator, 20)
    first.release()
    stage = stage_of(first)
    if removed:
        stage.remove_below(2)

    def refused(message: str) -> None:
        source = SparkStreamSource(feed.stream())
        with pytest.raises(StoreError, match=message):
            prepared(source, resuming=True)
        source.release()

    # Its plan of the second batch is not there: as it was before that batch.
    offset = stage.checkpoint / "offsets" / "1"
    offset.rename(tmp_path / "offset")
    refused("ends at batch 0, and the job has batch 1 already")
    (tmp_path / "offset").rename(offset)
    # It is of another query, or is not there at all.
    metadata = stage.checkpoint / "metadata"
    before = metadata.read_text()
    metadata.write_text(json.dumps({"id": "another"}))
    refused(r"is not the one .* Put it back")
    stage.checkpoint.rename(tmp_path / "checkpoint")
    refused(r"is not the one .* Put it back")
    assert not stage.checkpoint.exists(), "Spark would have begun to count anew"
    (tmp_path / "checkpoint").rename(stage.checkpoint)
    metadata.write_text(before)
    assert stage.query == json.loads(before)["id"]


def test_all_that_spark_has_written_of_a_batch_is_synced_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []
    opened: dict[int, str] = {}
    os_open = os.open

    def note_open(path: Path, *arguments: Any) -> int:
        descriptor = os_open(path, *arguments)
        opened[descriptor] = str(Path(path).relative_to(tmp_path))
        return descriptor

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(opened[descriptor]))
    plans = query_runner._Plans(tmp_path / "spark")

    def made_durable(number: int, *files: str) -> set[str]:
        for name in files:
            path = tmp_path / "spark" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        synced.clear()
        plans.make_durable(number)
        return set(synced)

    first = made_durable(0, "metadata", "offsets/0", "offsets/.0.crc", "sources/0/0", "sources/1/7")
    assert first >= {
        ".",
        "spark",
        "spark/metadata",
        "spark/offsets",
        "spark/offsets/0",
        "spark/offsets/.0.crc",
        "spark/sources",
        "spark/sources/0",
        "spark/sources/0/0",
        "spark/sources/1",
        "spark/sources/1/7",
    }
    # Every tenth file of a source has another name, and it counts for itself.
    second = made_durable(1, "offsets/1", "sources/0/9.compact")
    assert second >= {"spark/offsets/1", "spark/sources/0/9.compact", "spark/sources/0"}
    assert "spark/sources/0/0" not in second


class FakeQuery:
    """A query without Spark: it fails at once, or runs until it is stopped."""

    def __init__(self, failure: str | None = None, deaf: bool = False) -> None:
        self.over = threading.Event()
        self.stopped = False
        self._failure, self._deaf = failure, deaf

    def awaitTermination(self) -> None:
        if self._failure is not None:
            raise RuntimeError(self._failure)
        self.over.wait()

    def stop(self) -> None:
        self.stopped = True
        self.over.set()
        if self._deaf:
            raise ConnectionRefusedError("the JVM is gone")


@pytest.fixture
def feeding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Makes feeders whose queries are what a function gives."""
    monkeypatch.setattr(query_runner, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(query_runner, "session_lives", lambda session: session == "living")

    def make(
        begin: Callable[[], Any], session: str = "living"
    ) -> tuple[query_runner.StreamingQueryRunner, BatchFolder]:
        stage = BatchFolder(tmp_path / "stage")
        stage.create()
        fed = query_runner.StreamingQueryRunner(stage, SimpleNamespace(sparkSession=session), 4)
        monkeypatch.setattr(fed, "_begin", begin)
        fed.start(0, False)
        return fed, stage

    return make


def test_a_query_that_is_beginning_again_is_stopped_too(feeding: Callable):
    made: list[FakeQuery] = []
    beginning, go_on = threading.Event(), threading.Event()

    def begin() -> FakeQuery:
        if made:
            beginning.set()
            assert go_on.wait(PATIENCE)
        made.append(FakeQuery(None if made else "boom"))
        return made[-1]

    fed, stage = feeding(begin)
    assert beginning.wait(PATIENCE)
    stopping = threading.Thread(target=fed.stop, daemon=True)
    stopping.start()
    wait_until(lambda: made[0].stopped, "the first query to be stopped")
    go_on.set()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert made[1].stopped
    assert stage._lock is None


def test_a_stream_is_released_though_its_jvm_is_gone(feeding: Callable):
    fed, stage = feeding(lambda: FakeQuery(deaf=True))
    fed.stop()
    assert stage._lock is None
    assert not [t for t in threading.enumerate() if t.name == "spark-stream"]


def test_a_query_that_cannot_begin_is_tried_again_and_the_cause_is_told(
    feeding: Callable, tmp_path: Path
):
    told: list[str | None] = []
    tries = iter([FakeQuery("boom"), OSError("no space"), OSError("no space"), FakeQuery()])

    def begin() -> FakeQuery:
        told.append(BatchFolder(tmp_path / "stage").reported("failed"))
        made = next(tries)
        if isinstance(made, Exception):
            raise made
        running.append(made)
        return made

    running: list[FakeQuery] = []
    fed, stage = feeding(begin)
    wait_until(lambda: len(running) == 2, "the query to run again")
    wait_until(lambda: stage.reported("failed") is None, "that to be told")
    fed.stop()
    assert told == [None, "boom", "no space", "no space"]


def test_a_query_whose_session_is_gone_is_not_tried_again(feeding: Callable):
    tries = iter([FakeQuery("the JVM is gone")])
    fed, stage = feeding(lambda: next(tries), session="dead")
    wait_until(lambda: stage.reported("failed") == "the JVM is gone", "the failure to be told")
    wait_until(lambda: not fed._watcher.is_alive(), "the end of the watcher")
    fed.stop()
    assert stage.reported("ended") is None


def test_a_wrong_stream_is_refused_where_it_is_made(
    spark: SparkSession, feed: Feed, tmp_path: Path
):
    for arguments, message in [
        ({"frame": spark.range(3)}, "SparkTableSource"),
        ({"frame": feed.stream(), "max_unread_batches": 0}, "at least 1"),
        ({"frame": feed.stream(), "columns": ["nothing"]}, "no column 'nothing'"),
        ({"frame": feed.stream().selectExpr("make_interval(1) AS i")}, "interval"),
    ]:
        with pytest.raises(GraphError, match=message):
            SparkStreamSource(**arguments)
    source = SparkStreamSource(feed.stream())
    with pytest.raises(GraphError, match="not by submitting"):
        source.prepare(Preparation(tmp_path / "s", False, attached=False))
    counted = SparkStreamSource(feed.stream().groupBy("name").count())
    with pytest.raises(GraphError, match="Spark cannot run the stream"):
        counted.prepare(Preparation(tmp_path / "s", False, attached=True))
    counted.release()


# ---- whole jobs


def counting(feed: Feed, folder: Path) -> StreamExecutionEnvironment:
    """Counts the names of the stream, like the counting job of the harness."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    rows = env.from_source(SparkStreamSource(feed.stream(), as_="tuple", max_unread_batches=3))
    pairs = rows.uid("stream").map(lambda row: (row[1], 1)).key_by(lambda pair: pair[0])
    counted = pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("count")
    counted.sink_to(FileSink(folder / "out", JsonLines())).uid("files")
    return env


def test_killed_jobs_and_stopped_queries_lose_and_double_nothing(feed: Feed, tmp_path: Path):
    seed, batches = 7, 24
    killer = Killer(random.Random(seed), kills=4, targets=("worker", "jobmanager"))
    feed.add(200)
    published: set[int] = set()

    def progress(event: dict[str, Any]) -> None:
        published.update(int(p.name) for p in tmp_path.glob("job/sources/*/*/batches/[0-9]*"))
        if event["event"] in ("snapshot", "committed", "status"):
            # The last comes after the last kill, so that the job has to go on from that, too.
            if feed.files < batches - (len(killer.killed) < killer.kills):
                feed.add(200)
            elif feed.files == batches and len(committed(tmp_path / "out")) >= len(feed.ids):
                # All is there; what would be read twice must show, too.
                raise KeyboardInterrupt
        killer(event)

    resume = None
    for _ in range(30):
        try:
            run(counting(feed, tmp_path), resume=resume, progress=progress)
            raise AssertionError("the stream ended")
        except KeyboardInterrupt:
            break
        except StoreError as error:
            assert "killed by signal 9" in str(error)
        finally:
            killer.disarm()
        resume = "newest"
    assert len(killer.killed) == 4, f"seed {seed}"
    expected = Counter(f"name{i % 7}" for i in feed.ids)
    assert lost_and_doubled(committed(tmp_path / "out"), expected) == (0, 0)
    left = sorted(int(p.name) for p in tmp_path.glob("job/sources/*/*/batches/[0-9]*"))
    assert len(left) < len(published), "old batches are removed"
    assert not [t for t in threading.enumerate() if t.name == "spark-stream"]


@pytest.mark.long
def test_a_killed_program_is_resumed_with_both_checkpoints_as_they_are(feed: Feed, tmp_path: Path):
    seed = 5
    rng = random.Random(seed)
    for _ in range(12):
        feed.add(100)
    program = Path(__file__).with_name("stream_program.py")
    kills, resume = 1, []
    while True:
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, program, tmp_path, *resume],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        wait = rng.randint(2, 8) if kills else None
        with process.stdout as lines:
            for line in lines:
                if wait is not None and line.startswith(("snapshot", "committed")):
                    wait -= 1
                    if wait == 0:
                        process.kill()  # and Spark with it, whose input is a pipe from it
        if process.wait() == 0:
            break
        failed = (tmp_path / "log").read_text()
        assert process.returncode == -signal.SIGKILL or "in use by" in failed, failed
        kills -= process.returncode == -signal.SIGKILL
        resume = ["newest"]
    assert kills == 0, f"seed {seed}"
    expected = Counter(f"name{i % 7}" for i in feed.ids)
    assert lost_and_doubled(committed(tmp_path / "out"), expected) == (0, 0), f"seed {seed}"
