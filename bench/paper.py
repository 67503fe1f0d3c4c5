"""`paper`: the evaluation of the ABS paper, redone: what snapshots cost, by protocol and interval.

The topology is that of the paper's figure 5: six operators with **three full shuffles**, per-key
aggregates and source offsets as state. A source makes records of three keys; each of three keyed
reduces counts by one of them, behind a shuffle of its own; a sink counts. The state changes all the
time (`keys_changed_per_second`), and all protocols write it in the same way.

*Figure 6*: the overhead is the run time relative to that without snapshots, minus 1, for ABS,
synchronous snapshots and Chandy-Lamport's at each interval. Runs of the protocols and of the
baseline alternate; an overhead is the median over the rounds of the ratio to the baseline of the
same round, with a 95 % interval by bootstrap. A run is timed from the moment all tasks run until
the last of them has processed all its input. A figure is void (null) if a run completed fewer than
0.9 of the snapshots that the interval asks for (`snapshots_completed_share` says how many).

*Figure 7*: records per second at parallelism 1, 2, 4 and 8, with ABS at 3 s and without snapshots.
"""

from __future__ import annotations

import random
import resource
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.harness import Figures, Follower, Say, WrongResultError, machine, run, scratch
from penstock import (
    CheckpointingMode,
    GeneratorSource,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
)

__all__ = ["INTERVALS", "QUICK_INTERVALS", "measure"]

INTERVALS = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
QUICK_INTERVALS = (0.1, 1.0, 3.0)
KEYS = 50_021  # of each aggregate; a prime
MODES = {
    "abs": CheckpointingMode.EXACTLY_ONCE,
    "synchronous": CheckpointingMode.SYNCHRONOUS,
    "chandy_lamport": CheckpointingMode.CHANDY_LAMPORT,
}
#: A run lasts about so long, and at least so many intervals.
RUN_SECONDS = 3.5
LEAST_INTERVALS = 2.3
ENOUGH = 0.9


def measure(
    intervals: Iterable[float] = QUICK_INTERVALS,
    rounds: int = 5,
    parallelisms: Iterable[int] = (1, 2),
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure the overheads at each interval, and the rates at each parallelism.

    Arguments:
        intervals: seconds between two snapshots.
        rounds: runs of each protocol, and of the baseline, at each interval.
        parallelisms: for figure 7.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a record is lost or doubled.
    """
    with scratch(folder) as place:
        rate = _run(place, 400_000, 2, None, None, say)["records_per_second"]
        result: Figures = {f"{name}_overhead": {} for name in MODES}
        result |= {f"{name}_overhead_95": {} for name in MODES}
        result |= {"snapshots_completed_share": {}, "details": {}}
        for interval in intervals:
            records = int(rate * max(RUN_SECONDS, LEAST_INTERVALS * interval))
            runs = _rounds(place, records, interval, rounds, say)
            _evaluate(result, f"{interval:g}", runs)
        result["records_per_second"] = {}
        for parallelism in parallelisms:
            result["records_per_second"][str(parallelism)] = {
                label: round(
                    statistics.median(
                        _run(place, int(rate * RUN_SECONDS), parallelism, mode, 3.0, say)[
                            "records_per_second"
                        ]
                        for _ in range(max(1, rounds // 2))
                    )
                )
                for label, mode in (("none", None), ("abs", CheckpointingMode.EXACTLY_ONCE))
            }
    return {**result, "rounds": rounds, **machine()}


def _rounds(
    place: Path, records: int, interval: float, rounds: int, say: Say
) -> dict[str, list[Figures]]:
    """All runs at one interval, the protocols in turns."""
    runs: dict[str, list[Figures]] = {"none": [], **{name: [] for name in MODES}}
    for number in range(rounds):
        for name, done in runs.items():
            say(f"{interval:g} s, round {number + 1} of {rounds}: {name}")
            done.append(_run(place, records, 2, MODES.get(name), interval, say))
    return runs


def _evaluate(result: Figures, key: str, runs: dict[str, list[Figures]]) -> None:
    shares: Figures = {}
    for name in MODES:
        shares[name] = round(min(one["completed_share"] for one in runs[name]), 3)
        ratios = [
            one["seconds"] / base["seconds"] - 1
            for one, base in zip(runs[name], runs["none"], strict=True)
        ]
        valid = shares[name] >= ENOUGH
        result[f"{name}_overhead"][key] = round(statistics.median(ratios), 4) if valid else None
        result[f"{name}_overhead_95"][key] = _interval_95(ratios) if valid else None
    result["snapshots_completed_share"][key] = shares
    result["details"][key] = {
        name: {
            figure: statistics.median(one[figure] for one in done)
            for figure in done[0]
            if done[0][figure] is not None
        }
        for name, done in runs.items()
    }


def _interval_95(values: list[float]) -> list[float]:
    """Where the median lies with 95 % confidence, by bootstrap."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return [round(medians[50], 4), round(medians[-51], 4)]


def _run(
    place: Path,
    records: int,
    parallelism: int,
    mode: CheckpointingMode | None,
    interval: float | None,
    say: Say,
) -> Figures:
    """One run; without snapshots if there is no mode."""
    with scratch(str(place)) as own:
        follower = Follower(say)
        env = build(own, records, parallelism)
        if mode is not None and interval is not None:
            env.enable_checkpointing(interval * 1000, mode)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(env, follower)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        arrived = sum(int(path.read_text()) for path in own.glob("arrived-*"))
    if arrived != records:
        raise WrongResultError(f"{arrived} of {records} records arrived")
    ((ended, final),) = (
        (at, e) for at, e in follower.events if e["event"] == "snapshot" and e["kind"] == "final"
    )
    seconds = ended - final["duration_ms"] / 1000 - follower.first("running")
    snapshots = follower.snapshots()
    asked = 1 if mode is None or interval is None else max(1, int(seconds / interval))
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "records_per_second": records / seconds,
        # Each record changes a key of each of three aggregates; in a second more records come
        # than there are keys, so all of them change.
        "keys_changed_per_second": 3 * min(KEYS, records / seconds),
        "completed_share": min(1.0, len(snapshots) / asked) if mode is not None else None,
        "snapshot_bytes": _median(snapshots, "bytes_new"),
        "snapshot_ms": _median(snapshots, "duration_ms"),
        "aligned_ms": _median(snapshots, "aligned_ms"),
        "log_bytes": _median(snapshots, "log_bytes"),
    }


def _median(snapshots: list[dict[str, Any]], figure: str) -> float | None:
    return statistics.median(s[figure] for s in snapshots) if snapshots else None


def build(place: Path, records: int, parallelism: int) -> StreamExecutionEnvironment:
    """The program: source, three keyed aggregates behind full shuffles, sink."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    # With a folder in any case, so that the last snapshot is in all runs alike.
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    source = GeneratorSource(_record, records)
    stream = env.from_source(source).map(lambda keys: (*keys, 1))
    for place_of_key in range(3):
        stream = stream.key_by(_Key(place_of_key)).reduce(_count)
    stream.add_sink(_Arrivals(place))
    return env


class _Key:
    """Takes one of the keys."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __call__(self, record: tuple[int, int, int, int]) -> int:
        return record[self._place]


def _record(index: int) -> tuple[int, int, int]:
    return (index * 7919 % KEYS, index * 104_729 % KEYS, index * 15_485_863 % KEYS)


def _count(
    state: tuple[int, int, int, int], record: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    return (record[0], record[1], record[2], state[3] + 1)


class _Arrivals(SinkFunction):
    """Counts records."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._arrived = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def invoke(self, value: Any) -> None:
        del value
        self._arrived += 1

    def close(self) -> None:
        (self._place / f"arrived-{self._subtask}").write_text(str(self._arrived))
