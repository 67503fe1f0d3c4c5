"""A Spark table in, a Spark table out: the first word of each line, counted as it comes.

    penstock run examples/spark_tables.py --master 'local-cluster[2,1,1024]' --slots 2 \\
        --checkpoint-dir DIR -- FOLDER

FOLDER/lines is a Parquet table of lines of source code (module, number, text). Each line with a
word in it becomes a row of the table FOLDER/counts: that word, the line's module and number, and
how many lines before it began with this word, itself included. `examples/demo_spark.py` makes the
table, runs this program and kills its processes.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.connectors.spark import SparkTableSink, SparkTableSource, spark_session

#: Spark SQL finds the same words with it, which `\w` or `str.split` would not promise.
WORD = "[A-Za-z_]+"
LINES = "module STRING, number INT, text STRING"
COUNTS = "word STRING, module STRING, number INT, n BIGINT"


class RunningCount(KeyedProcessFunction):
    """Says of each record the how many-th of its key it is."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(
        self, value: tuple[str, str, int], ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[str, str, int, int]]:
        del ctx
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        return ((*value, n),)


def main(folder: Path) -> None:
    spark = spark_session()
    # This catalog is gone when the program is; the rows are in the folder, and found there again.
    for name, columns in (("lines", LINES), ("counts", COUNTS)):
        where = f"USING parquet LOCATION '{folder / name}'"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) {where}")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(100)  # milliseconds
    lines = env.from_source(SparkTableSource("lines", as_="tuple")).uid("lines")
    first = re.compile(WORD).search

    def first_word(row: tuple[str, int, str]) -> list[Any]:
        found = first(row[2])
        return [(found[0], row[0], row[1])] if found else []

    counts = lines.flat_map(first_word).key_by(lambda row: row[0]).process(RunningCount())
    counts.uid("counts").sink_to(SparkTableSink("counts")).uid("table")
    env.execute("first words")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: penstock run examples/spark_tables.py -- FOLDER")
    main(Path(sys.argv[1]).resolve())
