"""`spark`: from a Spark table through a job to a Spark table, against Spark by itself.

The table has three columns (a bigint, a word of a 10,000-word Zipf vocabulary, a double) and is
made by Spark. What is measured, each on all of its rows and with two workers:

* the source alone, as tuples of three columns and as Arrow batches;
* *pass-through*: the rows into a table of the same columns;
* *keyed count*: each row's word with the how many-th of its kind it is, into a table: one row out
  for each row in. By `count()` of a keyed stream (`count_*`), and by a `KeyedProcessFunction` with
  a `ValueState` (`process_*`);
* the same keyed count as a Spark streaming query, with `applyInPandasWithState`;
* the counts per word alone, as a Spark batch query, which writes a row per word.

**Jobs are timed from the moment all tasks run until the job has ended**: reading, staging, the
snapshots, the final one too, and all commits are in it; pinning the table (by hard links) and
starting processes are not (`*_startup_seconds`). Spark has its session, its Python workers and a
first query behind it when its clock starts, and of the streaming query only the time within its
batches counts. Every table that is written is compared with what it must be by number of rows
and checksum, or there is no figure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    median_figures,
    run,
    scratch,
)
from penstock import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.streams import KeyedStream

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

__all__ = ["measure"]

WORKERS = 2
#: Files of the table. Spark's stream takes half of them at a time: large batches are its strength.
FILES, FILES_PER_BATCH = 8, 4
VOCABULARY = 10_000
ROWS, COUNTS = "id BIGINT, word STRING, value DOUBLE", "word STRING, n BIGINT"
SESSION = {
    "spark.sql.shuffle.partitions": str(WORKERS),
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
    "spark.driver.memory": "2g",
}


def measure(
    rows: int = 6_000_000,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure jobs between tables, and Spark.

    Arguments:
        rows: of the table.
        rounds: of everything, one after the other; medians are quoted.
        interval_ms: between two snapshots.
        folder: where tables and snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a table is not what it must be.
    """
    from penstock.connectors.spark import spark_session

    with scratch(folder) as place:
        say("starting Spark")
        own = {"spark.local.dir": f"{place}/local", "spark.sql.warehouse.dir": f"{place}/tables"}
        spark = spark_session(SESSION | own, f"local[{WORKERS}]")
        try:
            bench = _Bench(spark, place, rows, interval_ms, say)
            done = [bench.round() for _ in range(rounds)]
        finally:
            spark.stop()
    figures = median_figures(done)
    count = figures["count_rows_per_second"]
    stateful = figures["spark_stateful_python_rows_per_second"]
    return {
        **figures,
        "ratio_to_spark_stateful_python": round(count / stateful, 2),
        "process_ratio_to_spark_stateful_python": round(
            figures["process_rows_per_second"] / stateful, 2
        ),
        "ratio_to_spark_sql": round(count / figures["spark_sql_rows_per_second"], 3),
        "rows": rows,
        "all_count_rows_per_second": [f["count_rows_per_second"] for f in done],
        "all_spark_stateful_python_rows_per_second": [
            f["spark_stateful_python_rows_per_second"] for f in done
        ],
        **machine(),
    }


class _Bench:
    """The table, and everything that is measured on it.

    Arguments:
        spark: a session.
        place: a folder for everything.
        rows, interval_ms, say: as for `measure`.
    """

    def __init__(
        self, spark: SparkSession, place: Path, rows: int, interval_ms: float, say: Say
    ) -> None:
        self._spark, self._place = spark, place
        self._rows, self._interval_ms, self._say = rows, interval_ms, say
        say("Spark writes the table")
        # A number to the power of an even random number: Zipf's law, or as near as matters.
        size = min(VOCABULARY, max(1, rows // 100))
        words = f"concat('word', CAST(floor(pow({size}, rand(7))) AS INT)) AS word"
        made = spark.range(0, rows, 1, FILES).selectExpr("id", words, "id * 0.5D AS value")
        made.write.saveAsTable("rows_in")
        self._all = self._checksum("rows_in", ROWS)
        exploded = "SELECT word, explode(sequence(1L, count(*))) AS n FROM rows_in GROUP BY word"
        self._counts = self._checksum(f"({exploded})", COUNTS)
        warm = place / "warm"
        spark.table("rows_in").limit(1000).write.parquet(str(warm))
        self._stateful_query(warm, place / "warmed")

    def round(self) -> Figures:
        """Everything once."""
        self._say("the source, as tuples")
        figures: Figures = {"source_rows_per_second": self._read("tuple")}
        self._say("the source, as Arrow batches")
        figures["arrow_rows_per_second"] = self._read("arrow")
        for name, columns, wanted, build in (
            ("pass_through", ROWS, self._all, pass_through),
            ("count", COUNTS, self._counts, keyed_count),
            ("process", COUNTS, self._counts, keyed_process),
        ):
            self._say(f"table to table: {name}")
            figures |= self._table_to_table(name, columns, wanted, build)
        self._say("Spark's stateful Python")
        seconds = self._stateful_query(self._folder_of("rows_in"), self._place / "stateful")
        self._require("Spark's stateful Python", f"parquet.`{self._place}/stateful`", COUNTS)
        figures["spark_stateful_python_rows_per_second"] = round(self._rows / seconds)
        self._say("Spark SQL")
        figures["spark_sql_rows_per_second"] = round(self._rows / self._batch_query())
        return figures

    # ---- jobs

    def _environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(WORKERS).enable_checkpointing(self._interval_ms)
        shutil.rmtree(self._place / "job", ignore_errors=True)
        env.get_checkpoint_config().set_checkpoint_storage_dir(self._place / "job")
        return env

    def _run(self, env: StreamExecutionEnvironment) -> tuple[float, Follower]:
        """Seconds from all tasks running to the end of the job."""
        follower = Follower(self._say)
        run(env, follower)
        return follower.events[-1][0] - follower.first("running"), follower

    def _read(self, as_: str) -> int:
        from penstock.connectors.spark import SparkTableSource

        env = self._environment()
        counted = self._place / "counted"
        shutil.rmtree(counted, ignore_errors=True)
        counted.mkdir()
        env.from_source(SparkTableSource("rows_in", as_=as_)).sink_to(_Counter(counted))
        seconds, _ = self._run(env)
        rows = sum(int(path.read_text()) for path in counted.iterdir())
        if rows != self._rows:
            raise WrongResultError(f"the source gave {rows} of {self._rows} rows")
        return round(rows / seconds)

    def _table_to_table(
        self,
        name: str,
        columns: str,
        wanted: tuple[Any, ...],
        build: Callable[[StreamExecutionEnvironment], None],
    ) -> Figures:
        self._spark.sql("DROP TABLE IF EXISTS rows_out")
        self._spark.sql(f"CREATE TABLE rows_out ({columns}) USING parquet")
        env = self._environment()
        build(env)
        began = time.monotonic()
        seconds, follower = self._run(env)
        self._require(name, "rows_out", columns, wanted)
        snapshots = follower.snapshots()
        return {
            f"{name}_rows_per_second": round(self._rows / seconds),
            f"{name}_startup_seconds": round(follower.first("running") - began, 3),
            f"{name}_snapshots_completed": len(snapshots),
            f"{name}_snapshot_ms_median": median_figures(snapshots)["duration_ms"]
            if snapshots
            else None,
            f"{name}_peak_rss_mb": follower.peak_mb(),
        }

    # ---- Spark by itself

    def _stateful_query(self, source: Path, target: Path) -> float:
        """Run Spark's stateful Python; seconds within its batches."""
        shutil.rmtree(target, ignore_errors=True)
        spark = self._spark
        stream = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", FILES_PER_BATCH)
        counts = (
            stream.parquet(str(source))
            .select("word")
            .groupBy("word")
            .applyInPandasWithState(running_count, COUNTS, "n BIGINT", "append", "NoTimeout")
        )
        checkpoint = target.with_name(f"{target.name}-checkpoint")
        shutil.rmtree(checkpoint, ignore_errors=True)
        writer = counts.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(str(target))
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        return sum(progress.batchDuration for progress in batches) / 1_000

    def _batch_query(self) -> float:
        """Run the batch query; seconds."""
        spark = self._spark
        spark.sql("DROP TABLE IF EXISTS counted")
        began = time.monotonic()
        counts = spark.sql("SELECT word, count(*) AS n FROM rows_in GROUP BY word")
        counts.write.saveAsTable("counted")
        seconds = time.monotonic() - began
        (total,) = spark.sql("SELECT sum(n) FROM counted").first() or (0,)
        if total != self._rows:
            raise WrongResultError(f"Spark counted {total} of {self._rows} rows")
        return seconds

    # ---- results

    def _folder_of(self, table: str) -> Path:
        (first, *_) = self._spark.table(table).inputFiles()
        return Path(first.removeprefix("file:")).parent

    def _checksum(self, table: str, columns: str) -> tuple[Any, ...]:
        """Return the number of rows, and two sums over their hashes, in any order."""
        names = ", ".join(column.split()[0] for column in columns.split(", "))
        text = f"SELECT count(*), bit_xor(xxhash64({names})), sum(hash({names})) FROM {table}"
        return tuple(self._spark.sql(text).first() or ())

    def _require(
        self, what: str, table: str, columns: str, wanted: tuple[Any, ...] | None = None
    ) -> None:
        found, wanted = self._checksum(table, columns), wanted or self._counts
        if found != wanted:
            raise WrongResultError(f"{what} wrote other rows: {found}, not {wanted}")


# ---- what runs in workers


def pass_through(env: StreamExecutionEnvironment) -> None:
    """Rows from table to table."""
    from penstock.connectors.spark import SparkTableSink, SparkTableSource

    rows = env.from_source(SparkTableSource("rows_in", as_="tuple"))
    rows.sink_to(SparkTableSink("rows_out"))


def keyed_count(env: StreamExecutionEnvironment) -> None:
    """Words, each with its running count."""
    from penstock.connectors.spark import SparkTableSink

    _by_word(env).count().sink_to(SparkTableSink("rows_out"))


def keyed_process(env: StreamExecutionEnvironment) -> None:
    """Run the same, by a function and its state."""
    from penstock.connectors.spark import SparkTableSink

    _by_word(env).process(_RunningCount()).sink_to(SparkTableSink("rows_out"))


def _by_word(env: StreamExecutionEnvironment) -> KeyedStream:
    from penstock.connectors.spark import SparkTableSource

    words = env.from_source(SparkTableSource("rows_in", columns=["word"], as_="tuple"))
    return words.key_by(lambda row: row[0])


class _RunningCount(KeyedProcessFunction):
    """Says of each record the how many-th of its key it is."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(
        self, value: tuple[str], ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[str, int]]:
        del ctx
        n = (self._count.value() or 0) + 1
        self._count.update(n)
        return ((value[0], n),)


def running_count(
    key: tuple[str], frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Run the same in Spark, where a function receives the rows of one key in frames."""
    import pandas as pd

    n = state.get[0] if state.exists else 0
    for frame in frames:
        counts = range(n + 1, n + 1 + len(frame))
        yield pd.DataFrame({"word": [key[0]] * len(frame), "n": counts})
        n += len(frame)
    state.update((n,))


class _Counter(Sink):
    """Counts rows, in records or in batches of Arrow, and does nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _CountingWriter(self._folder / str(context.subtask))


class _CountingWriter(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, 0

    def write(self, batch: list[Any]) -> None:
        if isinstance(batch[0], tuple):
            self._rows += len(batch)
        else:
            self._rows += sum(records.num_rows for records in batch)

    def close(self) -> None:
        self._path.write_text(str(self._rows))
