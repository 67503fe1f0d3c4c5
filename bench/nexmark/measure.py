"""`nexmark`: the queries of the Nexmark benchmark, checked against SQL and then measured.

For each query the program runs twice, on two workers with a snapshot each second:

1. On 100,000 events. Its results are compared with those of DuckDB (`oracle.py`). If they are
   wrong, the query has no figures but `correct` and `wrong`, and the exit code is 1.
2. On millions of events, into a sink that drops its records, as in the published runs. **The time
   runs from the first event until the last snapshot, which follows the last event, is durable.**
   The source generates the events in this time, as in the published runs.

`events_per_second_per_core` is the number of events divided by the processor time of the workers.
The published figures are the same: events, divided by cores in use and seconds. Other work on the
machine changes it less than `events_per_second`. `docs/inside/nexmark.md` describes all of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, machine, percentile, run, scratch
from bench.nexmark.generator import BLOCK, Generator, NexmarkConfig
from bench.nexmark.model import Auction, Bid, Person
from bench.nexmark.queries import QUERIES, Query
from bench.nexmark.queries.query import Row
from bench.nexmark.source import NexmarkSource
from penstock import DataStream, PenstockError, StreamExecutionEnvironment, WatermarkStrategy
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext

__all__ = ["collect", "measure"]

WORKERS = 2
CHECKED_EVENTS = 100_000
#: The event time of a checking run, in seconds: windows of 10 s end five times.
CHECKED_SECONDS = 50
#: The watermark is so far behind the newest event.
DELAY_MS = 4_000


def measure(
    names: Sequence[str] = (),
    events: int | None = None,
    checked: int = CHECKED_EVENTS,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
    tell: Say = print,
) -> Figures:
    """Check and measure some queries.

    Arguments:
        names: the names of the queries; all if there are none.
        events: the number of events of each measuring run. By default it depends on the query, so
            that a run takes about ten seconds.
        checked: the number of events of each checking run.
        interval_ms: the time between two snapshots, in milliseconds.
        folder: the folder for snapshots; the system's temporary folder if None.
        say: a function that is called with each step of progress.
        tell: a function that is called with a line for each query.

    Returns:
        `queries`, with the figures of each query by its name, and figures of the generator and the
        machine. If results are wrong or a job fails, `correct` is False and `wrong` says why.
    """
    from bench.nexmark.oracle import Oracle  # it needs DuckDB, which workers do not

    rate = generator_rate()
    config = NexmarkConfig(checked, rate=max(1, checked // CHECKED_SECONDS))
    oracle = Oracle(config)
    figures: dict[str, Figures] = {}
    chosen = [QUERIES[name] for name in dict.fromkeys(names or QUERIES)]
    for number, query in enumerate(chosen, 1):
        place = f"{query.name} ({number} of {len(chosen)})"
        say(f"{place}: checking {checked:,} events")
        measured: Figures = {}
        try:
            with scratch(folder) as run_folder:
                wrong = oracle.difference(query, collect(query, config, run_folder, interval_ms))
            if wrong is None:
                with scratch(folder) as run_folder:
                    count = events or query.events
                    measured = _measure(query, count, run_folder, interval_ms, _under(say, place))
        except PenstockError as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None:
            measured["wrong"] = wrong
        figures[query.name] = {"title": query.title, "correct": wrong is None, **measured}
        tell(_line(query.name, figures[query.name]))
    return {
        "queries": figures,
        "correct": all(of["correct"] for of in figures.values()),
        "generator_events_per_second": rate,
        "checked_events": checked,
        "workers": WORKERS,
        **machine(),
    }


def _line(name: str, figures: Figures) -> str:
    if not figures["correct"]:
        return f"{name}: WRONG: {figures['wrong']}"
    per_core, seconds = figures["events_per_second_per_core"], figures["seconds"]
    return f"{name}: correct, {per_core:,} events/s and core in {seconds:.1f} s"


def _under(say: Say, place: str) -> Say:
    return lambda text: say(f"{place}: {text}")


def generator_rate(blocks: int = 40) -> int:
    """Return the events that the generator makes in a second of one processor's time."""
    generator = Generator(NexmarkConfig(events=(blocks + 1) * BLOCK))
    generator.block(0)
    began = time.process_time()
    for number in range(1, blocks + 1):
        generator.block(number)
    return round(blocks * BLOCK / (time.process_time() - began))


def collect(
    query: Query,
    config: NexmarkConfig,
    folder: Path,
    interval_ms: float,
    in_process: bool = False,
) -> list[Row]:
    """Run a query, and return its results.

    Arguments:
        query: the query.
        config: the configuration of the generator.
        folder: an empty folder for snapshots and files.
        interval_ms: the time between two snapshots, in milliseconds.
        in_process: whether the job runs inside of this process.
    """
    env = _environment(folder, interval_ms).set_in_process(in_process)
    source = NexmarkSource(config, None, query.linger_seconds, query.columns)
    results = (query.build_checked or query.build)(_events(env, source))
    if query.write is None or query.read is None:
        records = results.execute_and_collect()
        return [tuple(row.values()) for row in records] if query.columns else list(records)
    query.write(results, folder / "files")
    env.execute()
    return query.read(folder / "files")


def _environment(folder: Path, interval_ms: float) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "snapshots")
    for kind in (Person, Auction, Bid):
        env.register_type(kind)
    return env


def _events(env: StreamExecutionEnvironment, source: NexmarkSource) -> DataStream:
    if source.columns:
        return env.from_source(source, None, "nexmark")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY_MS)
    return env.from_source(source, strategy, "nexmark")


def _measure(query: Query, events: int, folder: Path, interval_ms: float, say: Say) -> Figures:
    env = _environment(folder, interval_ms)
    source = NexmarkSource(NexmarkConfig(events), folder, columns=query.columns)
    results = query.build(_events(env, source))
    if query.write is None:
        results.sink_to(DroppingSink(folder))
    else:
        query.write(results, folder / "files")
    follower = Follower(say)
    run(env, follower)
    began, ended = _moments(folder, "began"), _moments(folder, "ended")
    last = next(
        at for at, e in follower.events if e["event"] == "snapshot" and e["kind"] == "final"
    )
    seconds = last - min(moment["at"] for moment in began)
    cpu = sum(moment["cpu"] for moment in ended) - sum(moment["cpu"] for moment in began)
    snapshots = follower.snapshots()
    durations = [snapshot["duration_ms"] for snapshot in snapshots]
    return {
        "events": events,
        "seconds": round(seconds, 3),
        "events_per_second": round(events / seconds),
        "cores": round(cpu / seconds, 2),
        "events_per_second_per_core": round(events / cpu),
        "results": sum(moment["results"] for moment in _moments(folder, "dropped")) or None,
        "state_bytes": max((snapshot["bytes_total"] for snapshot in snapshots), default=0),
        "snapshots_completed": len(snapshots),
        "snapshot_ms_p50": percentile(durations, 50) if durations else None,
        "snapshot_ms_p99": percentile(durations, 99) if durations else None,
        "peak_rss_mb": follower.peak_mb(),
    }


def _moments(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob(f"{name}-*.json")]


class DroppingSink(Sink):
    """Counts its records and drops them, as the sink `blackhole` of Flink SQL does.

    Arguments:
        folder: the folder of the run, which gets the counts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that counts."""
        return _DroppingWriter(self._folder / f"dropped-{context.subtask}.json")


class _DroppingWriter(SinkWriter):
    """Counts the records of one subtask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results = 0
        self.write_columns = self._count_rows

    def write(self, batch: list[Any]) -> None:
        """Count a batch."""
        self._results += len(batch)

    def _count_rows(self, batch: Any) -> None:
        self._results += batch.num_rows

    def close(self) -> None:
        """Write the count to a file."""
        self._path.write_text(json.dumps({"results": self._results}))
