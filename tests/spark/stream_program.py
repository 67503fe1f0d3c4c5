"""A program that feeds a job from a stream of Spark; `test_stream_source.py` kills it."""

import sys
from pathlib import Path

from penstock import FileSink, JsonLines, StreamExecutionEnvironment
from penstock.connectors.spark import SparkStreamSource, spark_session
from penstock.dataflow.program import RunOptions, run_options


def main(folder: Path, resume: str | None) -> None:
    """Count names, until the stream has been read to its end; each snapshot is told by a line."""
    session = spark_session(
        {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(folder / "local")}
    )
    reader = session.readStream.schema("id BIGINT, name STRING").option("maxFilesPerTrigger", 1)
    stream = reader.json(str(folder / "feed"))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    source = SparkStreamSource(stream, as_="tuple", available_now=True, max_unread_batches=2)
    pairs = env.from_source(source).uid("stream").map(lambda row: (row[1], 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted.uid("count").sink_to(FileSink(folder / "out", JsonLines())).uid("files")

    def tell(event: dict[str, object]) -> None:
        print(event["event"], flush=True)

    with run_options(RunOptions(resume=resume, progress=tell)):
        env.execute("stream")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
