"""`cycles`: a keyed loop of depth 10 against the same job unrolled by hand into ten steps.

Every record hops ten times: to another key each time, whose count (keyed state) goes up by one.
In the loop it comes back over a keyed back-edge; unrolled there are ten operators in a row, each
behind a keyed shuffle and with the same state. Two workers. `ratio` is hops per second in the loop
by hops per second unrolled, both with a snapshot each second, medians of interleaved rounds;
`snapshot_overhead` is what the loop loses by these snapshots against none. Runs are timed from the
first record to the end of the job, so the loop's end is found within the time.

Each run is checked: as many records come out as went in, where each should be, and the counts of
all keys add up to ten per record.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, WrongResultError, machine, run, scratch
from penstock import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

__all__ = ["measure"]

WORKERS = 2
HOPS = 10
KEYS = 20_011  # a prime, so that keys wander through all of them
STEP = 7_919


def measure(
    records: int = 1_000_000,
    rounds: int = 3,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure the loop, the loop without snapshots, and the unrolled job.

    Arguments:
        records: each hops ten times.
        rounds: of the three, one after the other.
        interval_ms: between two snapshots.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a hop is missing or came twice.
    """
    seconds: dict[str, list[float]] = {"loop": [], "quiet": [], "unrolled": []}
    followers: list[Follower] = []
    for number in range(rounds):
        for name, took in seconds.items():
            say(f"round {number + 1} of {rounds}: {name}")
            with scratch(folder) as place:
                follower = Follower(say)
                interval = None if name == "quiet" else interval_ms
                run(build(place, records, name != "unrolled", interval), follower)
                _check(place, records)
            took.append(follower.events[-1][0] - follower.first("running"))
            if name == "loop":
                followers.append(follower)
    medians = {name: statistics.median(took) for name, took in seconds.items()}
    snapshots = [s for follower in followers for s in follower.snapshots()]
    if not snapshots:
        raise WrongResultError("no snapshot was taken: use more records")
    return {
        "ratio": round(medians["unrolled"] / medians["loop"], 3),
        "snapshot_overhead": round(medians["loop"] / medians["quiet"] - 1, 4),
        "hops_per_second": round(records * HOPS / medians["loop"]),
        "unrolled_hops_per_second": round(records * HOPS / medians["unrolled"]),
        "log_records_max": max(s["log_records"] for s in snapshots),
        "log_records_median": statistics.median(s["log_records"] for s in snapshots),
        "log_bytes_median": statistics.median(s["log_bytes"] for s in snapshots),
        "log_bytes_max": max(s["log_bytes"] for s in snapshots),
        "snapshots_completed": len(snapshots),
        "snapshot_ms_median": statistics.median(s["duration_ms"] for s in snapshots),
        "records": records,
        "peak_rss_mb": followers[-1].peak_mb(),
        **{f"all_{name}_seconds": [round(t, 3) for t in took] for name, took in seconds.items()},
        **machine(),
    }


def build(
    place: Path, records: int, loop: bool, interval_ms: float | None
) -> StreamExecutionEnvironment:
    """Build the program, as a loop or unrolled."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    if interval_ms is not None:
        env.enable_checkpointing(interval_ms)
        env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    stream = env.from_sequence(0, records - 1).map(lambda number: (number % KEYS, HOPS))
    if loop:
        feedback = env.create_feedback("hops")
        hopped = hop(stream.union(feedback), place)
        feedback.close_with(hopped.filter(lambda record: record[1] > 0))
        done = hopped.filter(lambda record: record[1] == 0)
    else:
        done = stream
        for _ in range(HOPS):
            done = hop(done, place)
    done.add_sink(_Arrivals(place))
    return env


def hop(stream: DataStream, place: Path) -> DataStream:
    """One keyed step."""
    return stream.key_by(lambda record: record[0]).process(_Hop(place))


class _Hop(KeyedProcessFunction):
    """Counts a hop at its key, and sends the record on to another."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._hops = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(
        self, value: Any, ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[int, int]]:
        del ctx
        self._count.update((self._count.value() or 0) + 1)
        self._hops += 1
        return (((value[0] + STEP) % KEYS, value[1] - 1),)

    def close(self) -> None:
        (self._place / f"hops-{id(self)}-{time.monotonic_ns()}").write_text(str(self._hops))


class _Arrivals(SinkFunction):
    """Counts what arrives, and adds up the keys."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._arrived = self._keys = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def invoke(self, value: Any) -> None:
        self._arrived += 1
        self._keys += value[0]

    def close(self) -> None:
        path = self._place / f"arrivals-{self._subtask}"
        path.write_text(f"{self._arrived} {self._keys}")


def _check(place: Path, records: int) -> None:
    found = [path.read_text().split() for path in place.glob("arrivals-*")]
    arrived = sum(int(count) for count, _ in found)
    keys = sum(int(total) for _, total in found)
    hops = sum(int(path.read_text()) for path in place.glob("hops-*"))
    expected = sum((number % KEYS + HOPS * STEP) % KEYS for number in range(records))
    if (arrived, keys, hops) != (records, expected, records * HOPS):
        raise WrongResultError(
            f"{arrived} of {records} records arrived after {hops} of {records * HOPS} hops; "
            f"the keys add up to {keys} instead of {expected}"
        )
