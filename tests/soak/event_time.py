"""Kills jobs with sessions, timers, expiring state and late records, a hundred times.

Run as `python -m tests.soak.event_time [--kills N] [--seed S] [--scope SCOPE]`. The job is that of
`event_time_job.py`, at parallelism 2. Jobs differ in readers, snapshot interval, mode, and in where
state is kept and watermarks come from; each is killed several times, at random or aimed at phases,
and resumed when its JobManager died. Those with two readers then sometimes go on at another
parallelism. The last line is like

    kills 100 · lost 0 · doubled 0 · restarts of a part 31 of 80 · sessions 61204 ·
    timers 180000 · late 9023 · by phase: …

and the exit code is 0 exactly if nothing was lost or doubled, and late records and timers were
among it. A result that is wrong counts as doubled, and the right one in its place as lost.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path

from penstock import CheckpointingMode
from tests.soak.event_time_job import FUNCTION_PHASES, TimedSettings, timed_job, verdict
from tests.soak.killing import command, draw_aims, kill_jobs, scope_option

PHASES = (*FUNCTION_PHASES, "state written", "acknowledged", "published", "committing")


def _settings(rng: random.Random, folder: Path, kills: int, readers: int) -> TimedSettings:
    # With one reader tasks have one input each, so that there is nothing to align; with two
    # readers nothing is late.
    phases = [phase for phase in PHASES if readers == 1 or phase != "late record"]
    mode = rng.choice([CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
    if mode is CheckpointingMode.UNALIGNED:
        phases += ["log written", "replaying"]
    elif readers == 2:
        phases += ["before the cut"]
    return TimedSettings(
        folder,
        count=rng.choice([6_000, 12_000]),
        rate=rng.choice([2_000, 4_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        parallelism=2,
        seed=rng.randrange(10**6),
        readers=readers,
        mode=mode,
        at_source=rng.random() < 0.5,
        aims=draw_aims(rng, phases, kills),
    )


@command()
@scope_option
def main(kills: int, seed: int | None, scope: str | None) -> None:
    """Kill jobs with event time and count what is lost or doubled."""
    number = count()

    def draw(rng: random.Random, folder: Path, wanted: int) -> tuple[TimedSettings, list[int]]:
        # Also the shortest run has late records.
        readers = rng.choice([1, 1, 2]) if next(number) else 1
        settings = _settings(rng, folder, wanted, readers)
        return settings, [1, 2, 3] if readers == 2 and rng.random() < 0.3 else [2]

    sums = kill_jobs(kills, seed, draw, timed_job, lambda settings, _: verdict(settings), scope)
    happened = sums.happened
    timers, late = happened["timer"] + happened["clock timer"], happened["late"]
    counts = (f"sessions {happened['session']}", f"timers {timers}", f"late {late}")
    print(sums.line(*counts, f"by phase: {sums.by_phase()}"))
    sys.exit(0 if sums.right and timers and late else 1)


if __name__ == "__main__":
    main()
