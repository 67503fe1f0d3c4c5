"""`scaling`: processor time of a record by the number of hops and of workers, and by state size.

The job reads whole numbers, sends them through keyed hops that do nothing, and drops them. A run
with few records measures what starting and stopping takes, and is subtracted.

* `cpu_us_per_hop`: microseconds of processor time for a record and hop, by the number of hops, with
  two workers. `cpu_per_hop_ratio_64_to_2` divides that of 64 hops by that of two.
* The same beside two busy processes: `cpu_us_per_hop_busy`, `cpu_per_hop_ratio_64_to_2_busy`.
* `cpu_us_per_record`: microseconds for a record through two hops, by the number of workers.
  `cpu_per_record_ratio_p16_to_p2` divides that of 16 workers by that of two.
* `cpu_us_per_update`: microseconds of one worker for an update of a value of 1 kB, by the megabytes
  of its state, with `memory_mb` of memory for it (the job of `state`, with a snapshot each second).
* `start_cpu_seconds`: the processor time to start and stop, by the number of workers.
* `start_seconds_p32`, `descriptors_p32`, `pss_mb_per_worker_p32`: what starting takes
  (`startup.py`), also with two workers.
* `recovery_seconds`: from the kill of a worker until every task processes new records, without the
  delay of the restart strategy (`snapshots/recovery.py`).

Processor time does not depend on whether other processes are slow, but caches do, and so the ratios
vary by some tenths. A lost or doubled record is an error.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from bench import startup
from bench.common.harness import (
    Figures,
    Follower,
    Say,
    WrongResultError,
    machine,
    median_figures,
    run,
)
from bench.common.processors import seconds_of_children
from bench.snapshots import recovery
from bench.time import state
from penstock import SinkFunction, StreamExecutionEnvironment

__all__ = ["HOPS", "WIDTHS", "measure"]

#: The numbers of hops, with two workers, and the numbers of workers, with `WIDE_HOPS`.
HOPS, WIDTHS = (2, 4, 8, 16, 32, 64), (2, 4, 8, 16)
WIDE_HOPS, BUSY_PROCESSES = 2, 2
STARTED, KILLS = (2, 32), 5
#: The megabytes of state.
SIZES = (2, 8, 32, 128)
#: With more hops there are fewer records, so that each run processes about as many record hops.
FEWEST_RECORDS, STARTING_RECORDS = 100_000, 1_000


class Drop(SinkFunction):
    """Drops all records."""

    def invoke(self, value: int) -> None:
        """Do nothing."""


def measure(
    record_hops: int = 20_000_000,
    rounds: int = 3,
    hops: Sequence[int] = HOPS,
    widths: Sequence[int] = WIDTHS,
    started: Sequence[int] = STARTED,
    sizes: Sequence[int] = SIZES,
    kills: int = KILLS,
    say: Say = print,
    folder: str | None = None,
) -> Figures:
    """Run all jobs `rounds` times.

    Arguments:
        record_hops: the number of records of a run, times its number of hops.
        rounds: the number of rounds; medians are quoted.
        hops: the numbers of hops. The ratios divide the figure of the largest by that of the first.
        widths: the numbers of workers, in the same way.
        started: the numbers of workers whose start is measured.
        sizes: the megabytes of state whose updates are measured.
        kills: the number of killed workers; with 0 the recovery is not measured.
        say: a function that is called with each step of progress.
        folder: the folder for snapshots; the system's temporary folder if None.

    Raises:
        WrongResultError: if a record is lost or doubled.
    """
    runs: list[Figures] = []
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        figures: Figures = {}
        for busy in (False, True):
            with _busy_processes(BUSY_PROCESSES if busy else 0):
                suffix = "_busy" if busy else ""
                for count in hops:
                    used = _net_seconds(2, count, record_hops, say)
                    figures[f"cpu_us_per_hop{suffix}.{count}"] = used / count
        for width in widths:
            figures[f"cpu_us_per_record.p{width}"] = _net_seconds(
                width, WIDE_HOPS, record_hops, say
            )
            figures[f"start_cpu_seconds.p{width}"] = _seconds(width, WIDE_HOPS, STARTING_RECORDS)
        for megabytes in sizes:
            used = state.cpu_seconds_per_update(megabytes, folder, say) * 1e6
            figures[f"cpu_us_per_update.{megabytes}"] = used
            say(f"{megabytes} MB of state: {used:.1f} us for an update")
        runs.append(figures)
    result = median_figures(runs)
    few, many = hops[0], hops[-1]
    for suffix in ("", "_busy"):
        per_hop = f"cpu_us_per_hop{suffix}"
        ratio = result[f"{per_hop}.{many}"] / result[f"{per_hop}.{few}"]
        result[f"cpu_per_hop_ratio_{many}_to_{few}{suffix}"] = round(ratio, 3)
    narrow, wide = widths[0], widths[-1]
    per_record = "cpu_us_per_record"
    ratio = result[f"{per_record}.p{wide}"] / result[f"{per_record}.p{narrow}"]
    result[f"cpu_per_record_ratio_p{wide}_to_p{narrow}"] = round(ratio, 3)
    result |= startup.measure_widths(started, rounds, say)
    if kills:
        killed = recovery.kill_workers(recovery.SMALL, kills, 10_000, 200, 1, None, say)
        seconds = killed["seconds_until_every_task"] - recovery.RESTART_DELAY_SECONDS
        result["recovery_seconds"] = seconds
    rounded = {name: round(value, 3) for name, value in result.items()}
    return {**rounded, "memory_mb": state.SMALL_MEMORY / 1e6, "machine": machine()}


def _net_seconds(parallelism: int, hops: int, record_hops: int, say: Say) -> float:
    """Return the microseconds of processor time for a record, without start and stop."""
    records = max(FEWEST_RECORDS, record_hops // hops)
    start = _seconds(parallelism, hops, STARTING_RECORDS)
    used = (_seconds(parallelism, hops, records) - start) / (records - STARTING_RECORDS)
    say(f"{parallelism} workers, {hops} hops: {used * 1e6 / hops:.3f} us for a record and hop")
    return used * 1e6


def _seconds(parallelism: int, hops: int, records: int) -> float:
    """Run a job, and return the processor time of its processes in seconds."""
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(parallelism)
    stream = environment.from_sequence(0, records - 1)
    for hop in range(hops):
        stream = stream.key_by(lambda i, hop=hop: (i * 31 + hop) % 1009).map(lambda i: i)
    stream.add_sink(Drop()).name("drop")
    before = seconds_of_children()
    result = run(environment, Follower(lambda _: None))
    used = seconds_of_children() - before
    dropped = sum(row["records_in"] for row in result.operators if row["name"] == "drop")
    if dropped != records:
        raise WrongResultError(f"{records:,} records went in, and {dropped:,} came out")
    return used


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Run processes that use a core each, while the block runs."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        # They are killed after the measured children have ended, so their time does not count.
        for process in busy:
            process.kill()
            process.wait()
