"""What the examples of time share: their options, and event time for data that is replayed."""

from __future__ import annotations

import argparse
from typing import Any

from penstock import (
    DataStream,
    FileSink,
    JsonLines,
    StreamExecutionEnvironment,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)


class ReplayedTime(WatermarkGenerator):
    """Emits a watermark with each record that advances event time.

    Recorded data is read much faster than it was written. So the usual watermarks, one each 200 ms,
    would come hours of event time too late, and no record of these hours would count as late. With
    this generator, a replay gives the same results as the stream gave when it was live.

    Arguments:
        max_out_of_orderness: how much later than others a record may come, in milliseconds.
    """

    def __init__(self, max_out_of_orderness: int) -> None:
        self._delay = max_out_of_orderness + 1
        self._highest: int | None = None

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if self._highest is None or event_timestamp > self._highest:
            self._highest = event_timestamp
            output.emit_watermark(Watermark(event_timestamp - self._delay))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Do nothing: all watermarks come with records."""


def replay(
    env: StreamExecutionEnvironment, name: str, records: list[Any], max_out_of_orderness: int
) -> DataStream:
    """Return a stream of records `{"time": milliseconds, ...}` in the order of the list.

    One task reads them and gives them their event time. With several tasks, records would overtake
    each other, and other records would be late in each run.

    Arguments:
        env: the environment.
        name: the uid of the source.
        records: the records in the order of their arrival.
        max_out_of_orderness: how much later than others a record may come, in milliseconds.
    """
    strategy = WatermarkStrategy.for_generator(lambda: ReplayedTime(max_out_of_orderness))
    timed = strategy.with_timestamp_assigner(lambda record, _: record["time"])
    source = env.from_collection(records).uid(name)
    return source.assign_timestamps_and_watermarks(timed).set_parallelism(1)


def options(description: str) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parallelism", "-p", type=int, default=2, help="workers, 2 if not given")
    parser.add_argument("--checkpoint-dir", help="keep snapshots here, not in a temporary folder")
    parser.add_argument("--output", help="write results to files below this folder")
    parser.add_argument("--seed", type=int, default=1, help="of the data")
    return parser.parse_args()


def environment(given: argparse.Namespace) -> StreamExecutionEnvironment:
    """Return an environment with the options of the command line and frequent snapshots."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(given.parallelism)
    env.enable_checkpointing(100)  # milliseconds
    if given.checkpoint_dir is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(given.checkpoint_dir)
    return env


def write(stream: DataStream, name: str, given: argparse.Namespace) -> None:
    """Write a stream to a folder of this name, or print it."""
    if given.output is None:
        stream.print(name)
    else:
        stream.sink_to(FileSink(f"{given.output}/{name}", JsonLines())).uid(f"write {name}")
