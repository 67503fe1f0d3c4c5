"""Kills jobs between Spark tables at random, thirty times in a row.

Run as `python -m tests.soak.spark [--kills N] [--seed S]`. Two kinds of jobs take turns:

* table → keyed count → table (append or upsert, partitioned or not). Workers and JobManagers are
  killed at random moments, and JobManagers also between staging and commit and at each step
  within a commit (`tests/spark/dying_sink.py`). The program and its Spark session live on.
* stream → keyed count → table, in a program of its own (`tests/spark/stream_to_table.py`), whose
  Java process, or the whole of it, is killed at random moments, and then started again.

Each output is compared by Spark SQL with what it must be. The last line is
`kills N · lost 0 · doubled 0`, with the kills by kind behind it; the exit code is 0 exactly if
both are zero.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock import RestartStrategies, StoreError, StreamExecutionEnvironment
from penstock.connectors.spark import SparkTableSource, spark_session
from tests.processes.harness import Killer, run
from tests.soak.killing import Sums, Verdict, command, soaking
from tests.spark.dying_sink import POINTS, REPLACING, DyingSink

ROWS, WORDS, PARTS = 20_000, 97, 3
STREAM_PROGRAM = Path(__file__).parents[1] / "spark" / "stream_to_table.py"
#: Files that the stream finds, and lines in each.
FEED_FILES, FEED_LINES = 40, 100
SESSION = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
}


@dataclass
class Result:
    """What became of one job: the kills by kind, and rows that are missing or too many."""

    kills: Counter[str]
    lost: int
    doubled: int


# ---- table to table


def table_job(folder: Path, mode: str, interval_ms: int, parallelism: int) -> Any:
    """A running count per word, from a table to a table."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism).enable_checkpointing(interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    rows = env.from_source(SparkTableSource("words", as_="tuple")).uid("words")
    slow = rows.map(_Slow(ROWS / parallelism / 2.5))
    counts = slow.key_by(lambda row: row[0]).count().uid("count")
    options = {"keys": ["word", "part"]} if mode == "upsert" else {}
    sink = DyingSink("counts", mode, **options)
    sink.deaths = folder / "deaths"
    counts.map(lambda pair, n=PARTS: (*pair, len(pair[0]) % n)).sink_to(sink).uid("table")
    return env


class _Slow:
    """Lets through so many records a second, so that a job lasts long enough to be killed."""

    def __init__(self, rate: float) -> None:
        self._pause = 100 / rate
        self._seen = 0

    def __call__(self, value: Any) -> Any:
        self._seen += 1
        if self._seen % 100 == 0:
            threading.Event().wait(self._pause)
        return value


def table_to_table(spark: SparkSession, rng: random.Random, folder: Path, kills: int) -> Result:
    """One job with so many kills, over as many runs as it takes."""
    mode = rng.choice(["append", "append", "upsert"])
    partitioned = "PARTITIONED BY (part)" if rng.random() < 0.5 else ""
    for table in ("words", "counts"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    words = f"concat('word', id * 7919 % {WORDS}) AS word"
    spark.range(0, ROWS, 1, 4).selectExpr(words).write.saveAsTable("words")
    columns = "(word STRING, n BIGINT, part INT)"
    spark.sql(f"CREATE TABLE counts {columns} USING parquet {partitioned}")
    deaths = folder / "deaths"
    deaths.mkdir()
    # Half of the kills come at a point of the sink's commit, the others whenever they come.
    steps = [point for point in POINTS if point != "linked"] + REPLACING[:1]
    points = POINTS if mode == "append" else steps
    chosen = rng.sample(points, min(len(points), kills // 2))
    for point in chosen:
        (deaths / point).touch()
    settings = (mode, rng.choice([50, 100, 200]), rng.choice([1, 2, 2]))
    targets = ("worker", "worker", "jobmanager", "both")
    killer = Killer(random.Random(rng.random()), kills - len(chosen), targets, after_snapshots=None)
    resume: str | None = None
    for _ in range(100):
        try:
            run(table_job(folder, *settings), resume=resume, progress=killer)
            break
        except StoreError as error:
            if "killed by signal 9" not in str(error):
                raise
        finally:
            killer.disarm()
        resume = "newest"
    else:
        raise AssertionError("not finished after 100 runs")
    left = {path.name for path in deaths.iterdir()}
    struck = Counter(
        "between stage and commit" if point == "entered" else "inside commit"
        for point in chosen
        if point not in left
    )
    struck.update(target for target, _ in killer.killed)
    first = "count(*)" if mode == "upsert" else "1L"
    wanted = (
        f"SELECT word, explode(sequence({first}, count(*))) AS n, length(word) % {PARTS} AS part "
        f"FROM words GROUP BY word"
    )
    return Result(struck, *differences(spark, wanted, "SELECT * FROM counts"))


def differences(spark: SparkSession, wanted: str, seen: str) -> tuple[int, int]:
    """How many rows of `wanted` are not in `seen`, and how many of `seen` not in `wanted`."""
    spark.catalog.clearCache()

    def surplus(left: str, right: str) -> int:
        return spark.sql(f"({left}) EXCEPT ALL ({right})").count()

    return surplus(wanted, seen), surplus(seen, wanted)


# ---- stream to table


def stream_to_table(spark: SparkSession, rng: random.Random, folder: Path, kills: int) -> Result:
    """One program that is killed, or loses its Java process, so many times."""
    feed = folder / "feed"
    feed.mkdir()
    for file in range(FEED_FILES):
        ids = range(file * FEED_LINES, (file + 1) * FEED_LINES)
        lines = "\n".join(json.dumps({"id": i, "word": f"word{i % WORDS}"}) for i in ids)
        (feed / f"{file:04d}.json").write_text(lines)
    struck: Counter[str] = Counter()
    resume: list[str] = []
    for _ in range(100):
        left = kills - struck.total()
        aim = rng.choice(["driver JVM", "driver JVM", "driver"]) if left else None
        if _ran_to_the_end(folder, resume, aim, rng.randint(1, 4), struck):
            break
        resume = ["newest"]
    else:
        raise AssertionError("not finished after 100 runs")
    schema = f"FROM json.`{feed}`"
    wanted = f"SELECT word, explode(sequence(1L, count(*))) AS n {schema} GROUP BY word"
    seen = f"SELECT word, n FROM parquet.`{folder / 'counts'}`"
    return Result(struck, *differences(spark, wanted, seen))


def _ran_to_the_end(
    folder: Path, resume: list[str], aim: str | None, after: int, struck: Counter[str]
) -> bool:
    """Run the program once, killing what is aimed at after so many snapshots or commits."""
    log = folder / "log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, STREAM_PROGRAM, folder, *resume],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=STREAM_PROGRAM.parents[2],
        )
    jvm = 0
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "jvm":
                jvm = int(rest)
            after -= kind.strip() in ("snapshot", "committed")
            if after <= 0 and aim is not None:
                os.kill(jvm if aim == "driver JVM" else process.pid, signal.SIGKILL)
                struck[aim] += 1
                aim = None
    code = process.wait()
    told = log.read_text()
    if code not in (0, -signal.SIGKILL) and not struck["driver JVM"] and "in use by" not in told:
        raise AssertionError(f"the program failed by itself:\n{told[-3000:]}")
    return code == 0


# ---- all


@command(kills=30)
def main(kills: int, seed: int | None) -> None:
    """Kill jobs between Spark tables at random and count what is lost or doubled."""
    place = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    own = {"spark.local.dir": f"{place}/local", "spark.sql.warehouse.dir": f"{place}/tables"}
    spark = spark_session(SESSION | own)
    sums = Sums()
    number = 0
    with soaking(kills, seed) as (rng, console, told):
        while sums.kills.total() < kills:
            # The job of the stream starts a JVM each time it is killed, so it comes less often.
            job, most = (stream_to_table, 3) if number % 3 == 1 else (table_to_table, 8)
            folder = place / f"job-{number}"
            folder.mkdir()
            number += 1
            result = job(spark, rng, folder, min(most, kills - sums.kills.total()))
            sums.kills += result.kills
            sums.add(Verdict(result.lost, result.doubled))
            told(sums.kills.total())
            if result.lost or result.doubled:
                console.print(f"{job.__name__}: {result} in {folder}")
            else:
                shutil.rmtree(folder)
    spark.stop()
    if sums.right:
        shutil.rmtree(place)
    print(sums.line(sums.by_phase()))
    sys.exit(0 if sums.right else 1)


if __name__ == "__main__":
    main()
