"""Jobs that write Spark tables and are killed: rows lost and doubled are counted by Spark."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from penstock import RestartStrategies, StoreError, StreamExecutionEnvironment
from penstock.connectors.spark.sink.access import Access
from penstock.dataflow.errors import JobError
from tests.processes.harness import Killer, run
from tests.processes.parts import PartedSource
from tests.sizes import sized
from tests.spark.dying_sink import POINTS, REPLACING, DyingSink

RECORDS = 4_000
WORDS = 97
PARTS = 3


@pytest.fixture
def table(spark):
    spark.sql("DROP TABLE IF EXISTS counts")
    spark.sql(
        "CREATE TABLE counts (word STRING, n BIGINT, part INT) USING parquet PARTITIONED BY (part)"
    )
    yield "counts"
    spark.sql("DROP TABLE counts")


def job(folder, table, mode, parts, parallelism):
    """A running count per word, to the table."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(150)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(folder / "gate", parts, lambda i: i, RECORDS, 4_000)
    numbers = env.from_source(source).uid("numbers")
    counts = numbers.map(lambda i, w=WORDS: (f"word{i * 7919 % w}", 1)).key_by(lambda p: p[0])
    counts = counts.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("count")
    options = {"keys": ["word", "part"]} if mode == "upsert" else {}
    sink = DyingSink(table, mode, **options)
    sink.deaths = folder / "deaths"
    rows = counts.map(lambda pair, n=PARTS: (*pair, len(pair[0]) % n))
    rows.sink_to(sink).uid("table")
    return env


def run_to_the_end(folder, table, mode, killer=None, parts=1, parallelism=2):
    """Run the job, and resume it whenever its JobManager dies; returns how often it died."""
    for deaths in range(50):
        try:
            resume = "newest" if deaths else None
            run(job(folder, table, mode, parts, parallelism), resume=resume, progress=killer)
            return deaths
        except StoreError as error:
            assert "killed by signal 9" in str(error), error
        finally:
            if killer is not None:
                killer.disarm()
    raise AssertionError("not finished after 50 runs")


def expected(mode):
    """Rows that must be in the table."""
    words = Counter(f"word{i * 7919 % WORDS}" for i in range(RECORDS))
    first = words if mode == "upsert" else dict.fromkeys(words, 1)
    return Counter(
        (word, n, len(word) % PARTS) for word in words for n in range(first[word], words[word] + 1)
    )


def lost_and_doubled(spark, table, mode):
    seen = Counter(map(tuple, spark.table(table).collect()))
    wanted = expected(mode)
    return sum((wanted - seen).values()), sum((seen - wanted).values())


@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_commit_killed_at_any_point_loses_and_doubles_no_row(spark, table, tmp_path, mode):
    points = {
        "append": POINTS,
        "overwrite": ["entered", "linked", "told", "done", *REPLACING],
        "upsert": ["entered", "told", "written", "done", *REPLACING],
    }[mode]
    spark.sql(f"INSERT INTO {table} VALUES ('word0', 1, 0)" if mode == "overwrite" else "SELECT 1")
    (tmp_path / "deaths").mkdir()
    for point in points:
        (tmp_path / "deaths" / point).touch()
    # It is the JobManager that commits; one worker is enough for it.
    assert run_to_the_end(tmp_path, table, mode, parallelism=1) == len(points)
    assert list((tmp_path / "deaths").iterdir()) == []
    assert lost_and_doubled(spark, table, mode) == (0, 0)
    assert spark.sql(f"SHOW PARTITIONS {table}").count() == 2


@pytest.mark.parametrize("seed", range(1, sized(3, 9)))
def test_workers_and_jobmanagers_killed_at_random_lose_and_double_no_row(
    spark, table, tmp_path, seed
):
    targets = ("worker", "worker", "jobmanager", "both")
    gate = tmp_path / "gate"
    killer = Killer(random.Random(seed), kills=4, targets=targets, after_snapshots=None, gate=gate)
    run_to_the_end(tmp_path, table, "append", killer, parts=5)
    assert len(killer.killed) >= 4, f"seed {seed}"
    assert lost_and_doubled(spark, table, "append") == (0, 0), f"seed {seed}: {killer.killed}"


def test_a_catalog_in_memory_is_gone_with_its_program(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.connectors.spark.sink.access._own_session", lambda: None)
    access = Access(str(tmp_path / "gateway"), {})
    with pytest.raises(JobError, match="that program is gone"), access.connect():
        pass


def test_a_session_of_the_program_whose_jvm_is_gone_is_told(tmp_path, monkeypatch):
    def dead():
        raise ConnectionRefusedError

    context = SimpleNamespace(_jsc=SimpleNamespace(sc=dead))
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    access = Access(str(tmp_path / "gateway"), {})
    with pytest.raises(JobError, match=r"has died.* What is staged stays"), access.connect():
        pass


STAGE = """
import cloudpickle, sys
from penstock.connectors.spark import SparkTableSink, spark_session
from tests.spark.sink_tasks import Task

folder = sys.argv[1]
spark = spark_session({
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL":
        f"jdbc:derby:;databaseName={folder}/db;create=true",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": "mine",
    "spark.log.level": "OFF",
})
spark.sql("CREATE TABLE t (a INT, p STRING) USING parquet PARTITIONED BY (p)")
sink = SparkTableSink("t")
data = cloudpickle.dumps((sink, Task(sink).snapshot(1, [(1, "x"), (2, "y")])))
assert b"mine" not in data
open(f"{folder}/staged", "wb").write(data)
spark.stop()
"""
COMMIT = """
import pickle, sys
from penstock.connectors.spark import spark_session

sink, committables = pickle.load(open(f"{sys.argv[1]}/staged", "rb"))
sink.create_committer().commit(committables)
print(sorted(map(tuple, spark_session().table("t").collect())))
"""


@pytest.mark.long
def test_a_hive_metastore_is_reached_without_the_program_that_made_the_table(tmp_path):
    def python(program):
        return subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )

    staged = python(STAGE)
    assert staged.returncode == 0, staged.stderr
    committed = python(COMMIT)
    assert committed.stdout.strip() == "[(1, 'x'), (2, 'y')]", committed.stderr
