"""The demo of Spark: a table in, a table out, on a cluster whose processes are killed.

`make demo-spark` runs it. Spark makes a table of the lines of Python's own library, two million
with their module and number. `examples/spark_tables.py` counts their first words on a Spark
cluster of two executors (`local-cluster`: real ones, each a JVM of its own, on this machine). In
mid-stream one executor gets SIGKILL, later the driver, with the JobManager in it; the job is
resumed, and Spark SQL compares the table that it wrote with its own count of the same lines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console

from penstock.connectors.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
MASTER = "local-cluster[2,1,1024]"
#: The library is read again and again up to so many lines, so that there is a mid-stream. If the
#: job ends before its processes are killed, the demo starts again with twice as many.
LINES = 2_000_000
#: Snapshots that a run must have completed before something is killed in it.
SNAPSHOTS = 4
#: After this time without a next step, the demo says what it waits for. It goes on waiting.
REMARK_SECONDS = 60

console = Console(highlight=False)


def library_lines() -> Iterator[pa.RecordBatch]:
    """Return the lines of the standard library, a batch for each module."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            # Some of the library's test files are not valid text on purpose.
            text = path.read_bytes().decode("utf-8", errors="replace").split("\n")
            module = ".".join(path.relative_to(library).with_suffix("").parts)
            numbers = pa.array(range(1, len(text) + 1), pa.int32())
            columns = [pa.array([module] * len(text)), numbers, pa.array(text)]
            yield pa.RecordBatch.from_arrays(columns, ["module", "number", "text"])


def make_table(spark: SparkSession, folder: Path, wanted: int) -> int:
    """Have Spark write so many lines as a table; returns how many there are."""
    library = pa.Table.from_batches(library_lines())
    copies = -(-wanted // len(library))
    lines = spark.createDataFrame(library).crossJoin(spark.range(copies).select()).limit(wanted)
    lines.repartition(4).write.parquet(str(folder / "lines"))
    return spark.read.parquet(str(folder / "lines")).count()


class EndedEarly(Exception):
    """The job ended before all its processes were killed."""


class Job:
    """A running `penstock run`.

    Arguments:
        folder: everything is kept below it.
        options: more of the command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._state = folder / "job"
        self._log = folder / "log"
        command = [PENSTOCK, "run", str(HERE / "spark_tables.py"), "--progress", "plain"]
        command += ["--master", MASTER, "--slots", "2", "--checkpoint-dir", str(self._state)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *options, "--", str(folder)], stdout=log, stderr=log
            )

    @property
    def worker_pids(self) -> list[list[int]]:
        """Return the process ids of the workers of each attempt, as the job reported them."""
        # With the end of the line, since it may be half written.
        reported = re.findall(r"workers: pids ([\d, ]+)\n", self._log.read_text())
        return [[int(pid) for pid in line.split(",")] for line in reported]

    @property
    def newest(self) -> int:
        """The number of the newest complete snapshot; 0 if there is none."""
        found = self._state.glob("checkpoints/*/manifest")
        return max((int(path.parent.name.rpartition("-")[2]) for path in found), default=0)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        began = remarked = time.monotonic()
        while not condition():
            if self.process.poll() == 0:
                raise EndedEarly
            if self.process.returncode is not None:
                raise SystemExit(f"the job did not get so far: {what}\n{self._log.read_text()}")
            now = time.monotonic()
            if now > remarked + REMARK_SECONDS:
                remarked = now
                console.print(f"waiting for {what} since {now - began:.0f} s")
            threading.Event().wait(0.05)

    def wait_for_snapshots(self) -> None:
        """Wait for some more snapshots."""
        # Numbers are reserved in blocks, so they jump at a restart and are counted on from here.
        before = self.newest
        self.wait_for("a snapshot", lambda: self.newest > before)
        wanted = self.newest + SNAPSHOTS - 1
        self.wait_for(f"{SNAPSHOTS} snapshots", lambda: self.newest >= wanted)

    def finish(self) -> None:
        """Wait for the end."""
        if self.process.wait() != 0:
            raise SystemExit(f"the job failed\n{self._log.read_text()}")


def parent(pid: int) -> int:
    """Return the process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_and_resume(folder: Path) -> None:
    """Run the job with an executor and then the driver killed, and resume it."""
    job = Job(folder)
    try:
        job.wait_for("a first start", lambda: len(job.worker_pids) == 1)
        job.wait_for_snapshots()
        # A worker was forked by Spark's daemon, which the executor has started.
        try:
            executor = parent(parent(job.worker_pids[0][0]))
            os.kill(executor, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            raise EndedEarly from None
        console.print(f"snapshot {job.newest}: killed executor {executor} with SIGKILL")
        job.wait_for("a restart", lambda: len(job.worker_pids) == 2)
        job.wait_for_snapshots()
        job.process.kill()
        console.print(f"snapshot {job.newest}: killed driver {job.process.pid} with SIGKILL")
    finally:
        job.process.kill()
        job.process.wait()
    for pid in job.worker_pids[-1]:
        # Its workers see that it is gone, and must have ended before the folder is used again.
        while Path(f"/proc/{pid}").exists():
            threading.Event().wait(0.05)
    job = Job(folder, "--resume")
    try:
        job.finish()
    finally:
        job.process.kill()
    console.print("resumed from the newest snapshot, and finished")


def compare(spark: SparkSession, folder: Path) -> tuple[int, int, int]:
    """Compare the job's table with Spark's own count: rows in it, rows lost, rows doubled.

    The counts of a word must be 1, 2, 3 … n, each once, and each line must be there once; a record
    that is lost or doubled anywhere shows.
    """
    from spark_tables import WORD

    spark.read.parquet(str(folder / "counts")).createOrReplaceTempView("seen")
    spark.sql(
        f"SELECT regexp_extract(text, '{WORD}', 0) AS word, module, number "
        f"FROM parquet.`{folder}/lines` WHERE text RLIKE '{WORD}'"
    ).createOrReplaceTempView("wanted")

    def surplus(left: str, right: str) -> int:
        (row,) = spark.sql(f"SELECT count(*) FROM (({left}) EXCEPT ALL ({right}))").collect()
        return int(row[0])

    pairs: list[Any] = [
        (
            "SELECT word, explode(sequence(1L, count(*))) AS n FROM wanted GROUP BY word",
            "SELECT word, n FROM seen",
        ),
        ("SELECT * FROM wanted", "SELECT word, module, number FROM seen"),
    ]
    lost = sum(surplus(wanted, seen) for wanted, seen in pairs)
    doubled = sum(surplus(seen, wanted) for wanted, seen in pairs)
    return spark.table("seen").count(), lost, doubled


def main() -> int:
    """Run the demo; returns the exit code."""
    began = time.monotonic()
    folder = HERE.parent / "demo-output" / "spark"
    # A variable, since Spark warns of the setting spark.local.dir: some clusters ignore it.
    os.environ["SPARK_LOCAL_DIRS"] = str(folder.with_name("spark-local"))
    shutil.rmtree(folder.with_name("spark-local"), ignore_errors=True)
    warehouse = str(folder.with_name("spark-warehouse"))
    spark = spark_session(
        {"spark.sql.shuffle.partitions": "4", "spark.sql.warehouse.dir": warehouse}
    )
    wanted = LINES
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        lines = make_table(spark, folder, wanted)
        console.print(f"table: {lines:,} lines of Python's own library, with module and number")
        try:
            kill_and_resume(folder)
            break
        except EndedEarly:
            wanted *= 2
            console.print("the job was done before it was killed: again with twice as many lines")
    rows, lost, doubled = compare(spark, folder)
    console.print(f"{time.monotonic() - began:.0f} s; the table is in {folder / 'counts'}")
    console.print(f"rows {rows} · lost {lost} · doubled {doubled}")
    return 0 if lost == doubled == 0 and rows else 1


if __name__ == "__main__":
    sys.exit(main())
