"""`windows`: event-time windows per key, against the word count of the same parallelism.

Records are tuples `(key, 1, timestamp)` of 1,000 keys. They come in order but for a delay of less
than 1 s, which is the bound of the watermarks. The jobs are

    records.key_by(lambda record: record[0])
           .window(...)
           .reduce(lambda a, b: (a[0], a[1] + b[1], b[2]))

with tumbling windows of 10 s, with sessions, and with sliding windows of 60 s by 1 s, with an
inverse function and without. Each record of a window is counted: if one is lost or doubled, there
are no figures. In each round the word count runs first, on the same number of workers. Ratios are
of records (words) per second of the same round; medians are quoted.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Say, WrongResultError, machine, median_figures, scratch
from bench.throughput import wordcount
from bench.time.measured_job import Totals, environment, measure_job, records_in_memory
from penstock import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)

__all__ = ["measure"]

KEYS = 1_000
#: The records of one second of event time.
RATE = 10_000
DELAY_MS = 1_000
#: A key is active for one block of event time, and then quiet for as long.
BLOCK_MS = 10_000
SIZE, SLIDE = 60, 1
SHAPES = ("tumbling", "session", "sliding_inverse", "sliding")


def measure(
    records: int = 2_000_000,
    rounds: int = 2,
    interval_ms: float = 1_000,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Run the word count and the windows, `rounds` times.

    Arguments:
        records: the number of records; the word count has as many words.
        rounds: the number of rounds.
        interval_ms: the time between two snapshots, in milliseconds.
        folder: the folder for inputs and snapshots; the system's temporary folder if None.
        say: a function that is called with each step of progress.

    Raises:
        WrongResultError: if a record is not in its windows exactly once.
    """
    runs: list[Figures] = []
    with scratch(folder) as place:
        say("writing the lines of the word count")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(wordcount.prepare, records // 10, place).result()
        for number in range(rounds):
            say("the word count")
            words = wordcount.count_words(place, number, interval_ms, say)["words_per_second"]
            figures: Figures = {"wordcount_words_per_second": words}
            for shape in SHAPES:
                say(f"{shape} windows")
                run = place / f"{shape}-{number}"
                run.mkdir()
                figures |= _figures(shape, records, _run(shape, records, run, interval_ms, say))
            runs.append(figures | _ratios(figures))
    return {**median_figures(runs), "records": records, "rounds": rounds, **machine()}


def _figures(shape: str, records: int, run: Figures) -> Figures:
    return {
        f"{shape}_records_per_second": round(records / run["seconds"]),
        f"{shape}_cpu_ns_per_record": round(run["cpu_seconds"] / records * 1e9, 1),
        f"{shape}_results": run["results"],
        f"{shape}_snapshots_completed": run["snapshots_completed"],
        f"{shape}_peak_rss_mb": run["peak_rss_mb"],
    }


def _ratios(figures: Figures) -> Figures:
    def ratio(of: str, to: str) -> float:
        return round(float(figures[of] / figures[to]), 3)

    def cpu_ratio(shape: str) -> float:
        return ratio("tumbling_cpu_ns_per_record", f"{shape}_cpu_ns_per_record")

    tumbling, words = "tumbling_records_per_second", "wordcount_words_per_second"
    return {
        "tumbling_ratio_to_wordcount": ratio(tumbling, words),
        "session_ratio_to_wordcount": ratio("session_records_per_second", words),
        "sliding_inverse_ratio_to_tumbling": ratio("sliding_inverse_records_per_second", tumbling),
        "sliding_ratio_to_tumbling": ratio("sliding_records_per_second", tumbling),
        "sliding_inverse_cpu_ratio_to_tumbling": cpu_ratio("sliding_inverse"),
        "sliding_cpu_ratio_to_tumbling": cpu_ratio("sliding"),
    }


def make_records(records: int, sessions: bool, subtask: int, parallelism: int) -> list[Any]:
    """Return the records of a subtask.

    Arguments:
        records: the number of records of all subtasks.
        sessions: whether keys are active only for a block of time.
        subtask: the index of the subtask.
        parallelism: the number of subtasks.
    """
    draw = random.Random(subtask)
    names = [f"key-{number}" for number in range(KEYS)]
    made = []
    for index in range(subtask, records, parallelism):
        time = index * 1_000 // RATE
        key = draw.randrange(KEYS)
        if sessions:
            # In even blocks the keys with even numbers are active, in odd blocks the others.
            key = key // 2 * 2 + time // BLOCK_MS % 2
        made.append((names[key], 1, time - draw.randrange(DELAY_MS)))
    return made


def _run(shape: str, records: int, folder: Path, interval_ms: float, say: Say) -> Figures:
    env = environment(folder, wordcount.WORKERS, interval_ms)
    source = records_in_memory(partial(make_records, records, shape == "session"), folder)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY_MS)
    timed = strategy.with_timestamp_assigner(lambda record, _: record[2])
    keyed = env.from_source(source, timed).key_by(lambda record: record[0])
    sliding = SlidingEventTimeWindows.of(Time.seconds(SIZE), Time.seconds(SLIDE))
    windows = {
        "tumbling": TumblingEventTimeWindows.of(Time.seconds(10)),
        "session": EventTimeSessionWindows.with_gap(Time.seconds(4)),
        "sliding_inverse": sliding,
        "sliding": sliding,
    }
    inverse = None
    if shape == "sliding_inverse":

        def inverse(a: Any, b: Any) -> Any:
            return (a[0], a[1] - b[1], a[2])

    counts = keyed.window(windows[shape]).reduce(
        lambda a, b: (a[0], a[1] + b[1], b[2]), inverse=inverse
    )
    counts.add_sink(Totals(folder))
    figures = measure_job(env, folder, say)
    expected = records * (SIZE // SLIDE if shape.startswith("sliding") else 1)
    if figures["total"] != expected:
        raise WrongResultError(
            f"{shape} windows have {figures['total']:,} records, and not {expected:,}"
        )
    return figures
