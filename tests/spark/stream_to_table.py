"""A program from a stream of Spark to a table; `tests/soak/spark.py` kills it and its JVM."""

import sys
from pathlib import Path

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.spark import SparkStreamSource, SparkTableSink, spark_session
from penstock.dataflow.program import RunOptions, run_options


def main(folder: Path, resume: str | None) -> None:
    """Count words until the stream has been read to its end; events are told, a line each."""
    session = spark_session(
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "local"),
            "spark.log.level": "OFF",
        }
    )
    print("jvm", session.sparkContext._gateway.proc.pid, flush=True)
    reader = session.readStream.schema("id BIGINT, word STRING").option("maxFilesPerTrigger", 2)
    stream = reader.json(str(folder / "feed"))
    # The catalog is in the memory of the JVM, so it is told of the table each time.
    where = f"USING parquet LOCATION '{folder / 'counts'}'"
    session.sql(f"CREATE TABLE IF NOT EXISTS counts (word STRING, n BIGINT) {where}")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    # A stream without its JVM does not come back: few tries, and then the program is at its end.
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 100))
    source = SparkStreamSource(stream, as_="tuple", available_now=True, max_unread_batches=2)
    counts = env.from_source(source).uid("stream").key_by(lambda row: row[1]).count()
    counts.uid("count").sink_to(SparkTableSink("counts")).uid("table")

    def tell(event: dict[str, object]) -> None:
        print(event["event"], flush=True)

    with run_options(RunOptions(resume=resume, progress=tell)):
        env.execute("stream")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
