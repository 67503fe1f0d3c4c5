"""`latency`: from a source to a sink through one keyed shuffle, at a low rate (see `latency_load`).

Two workers, 1,000 records a second over both, a snapshot each second. The source's function makes
`(key, index, time.monotonic_ns())`; a keyed reduce keeps the newest; the sink takes the time again
(the clock is one for all processes of a machine) and keeps the difference. Half of the records
go to the other process; the figures with the prefix `remote_` are of those alone.

The figures without prefix begin when the record is made. One made late, since the source was held
up, hides that it waited; so the figures with the prefix `due_` begin when it *should* have been
made: at a steady rate, from the schedule on which no record was early. They have the timer of the
operating system in them. Those with `steady_` leave out the records that were under way while the
machine was slow by itself (`bench.common.steadiness`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    median_figures,
    percentiles_ms,
    run,
    scratch,
)
from bench.common.steadiness import Watch
from bench.latency.arrivals import Arrivals, read_arrivals
from penstock import GeneratorSource, StreamExecutionEnvironment

__all__ = ["measure"]

WORKERS = 2
KEYS = 1009
#: Latency of the first records is that of code that runs for the first time.
WARM_UP_SECONDS = 0.5


def measure(
    rate: int = 1_000,
    seconds: float = 20.0,
    interval_ms: float | None = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Measure the latency of each record.

    Arguments:
        rate: records per second, over both workers.
        seconds: how long.
        interval_ms: between two snapshots; None for none.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.

    Raises:
        WrongResultError: if a record is missing or came twice.
    """
    count = int(rate * seconds)
    with scratch(folder) as place:
        follower = Follower(say)
        with Watch() as watch:
            run(build(place, rate, count, interval_ms), follower)
        rows = _rows(place)
    indices = sorted(index for index, _, _, _ in rows)
    if indices != list(range(count)):
        raise WrongResultError(f"{len(indices)} records arrived, {len(set(indices))} different")
    checkpoints = follower.snapshots()
    schedule = _schedule(rows, rate)
    warm = [row for row in rows if row[0] >= rate * WARM_UP_SECONDS]
    remote = [row for row in warm if row[0] % WORKERS != row[3]]
    steady = [row for row in warm if not watch.was_slow(row[1] / 1e9, row[2] / 1e9)]
    return {
        **percentiles_ms([arrived - made for _, made, arrived, _ in warm]),
        **percentiles_ms([arrived - made for _, made, arrived, _ in remote], "remote_"),
        **percentiles_ms([row[2] - schedule(row[0]) for row in warm], "due_"),
        # On the slowest of machines there may be none.
        **(percentiles_ms([row[2] - row[1] for row in steady], "steady_") if steady else {}),
        "slow_percent": watch.slow_percent(
            min(row[1] for row in warm) / 1e9, max(row[2] for row in warm) / 1e9
        ),
        "records": len(warm),
        "steady_records": len(steady),
        "remote_records": len(remote),
        "records_per_second": rate,
        "snapshots_completed": len(checkpoints),
        "snapshot_ms_median": median_figures(checkpoints)["duration_ms"] if checkpoints else None,
        **machine(),
    }


def build(
    place: Path, rate: int, count: int, interval_ms: float | None
) -> StreamExecutionEnvironment:
    """Build the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS)
    if interval_ms is not None:
        env.enable_checkpointing(interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    source = GeneratorSource(
        lambda index: (index * 7919 % KEYS, index, time.monotonic_ns()), count, rate
    )
    newest = env.from_source(source).key_by(lambda r: r[0]).reduce(lambda _, new: new)
    newest.add_sink(Arrivals(place))
    return env


def _rows(place: Path) -> list[tuple[int, int, int, int]]:
    """Index, made, arrived (nanoseconds) and the sink's subtask, of each record."""
    rows = []
    for subtask in range(WORKERS):
        columns = read_arrivals(place, subtask)
        rows += list(zip(*columns, repeat(subtask, len(columns[0])), strict=True))
    return rows


def _schedule(rows: list[tuple[int, int, int, int]], rate: int) -> Callable[[int], float]:
    """When each record was due: each source's latest schedule on which none was made early."""
    spacing = 1e9 / rate
    starts = [
        min(made - index * spacing for index, made, _, _ in rows if index % WORKERS == source)
        for source in range(WORKERS)
    ]
    return lambda index: starts[index % WORKERS] + index * spacing
