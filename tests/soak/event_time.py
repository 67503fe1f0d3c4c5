"""Kills jobs with sessions, timers, expiring state and late records, a hundred times.

Run as `python -m tests.soak.event_time [--kills N] [--seed S]`. The job is that of
`event_time_job.py`, at parallelism 2. Jobs differ in readers, snapshot interval, mode, and in where
state is kept and watermarks come from; each is killed several times, at random or aimed at phases,
and resumed when its JobManager died. Those with two readers then sometimes go on at another
parallelism. The last line is like

    kills 100 · lost 0 · doubled 0 · sessions 61204 · timers 180000 · late 9023 · by phase: …

and the exit code is 0 exactly if nothing was lost or doubled, and late records and timers were
among it. A result that is wrong counts as doubled, and the right one in its place as lost.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from penstock import CheckpointingMode, StreamExecutionEnvironment
from tests.processes.aims import strikes
from tests.processes.harness import Killer, run_to_the_end
from tests.soak.event_time_job import FUNCTION_PHASES, TimedSettings, history, timed_job
from tests.soak.soak import soaking

PHASES = (*FUNCTION_PHASES, "state written", "acknowledged", "published", "committing")


def _settings(rng: random.Random, folder: Path, kills: int, readers: int) -> TimedSettings:
    """A job; two of three are killed with an aim and the others at random."""
    # With one reader tasks have one input each, so that there is nothing to align; with two
    # readers nothing is late.
    phases = [phase for phase in PHASES if readers == 1 or phase != "late record"]
    mode = rng.choice([CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
    if mode is CheckpointingMode.UNALIGNED:
        phases += ["log written", "replaying"]
    elif readers == 2:
        phases += ["before the cut"]
    aims: list[tuple[str, str]] = []
    if rng.random() < 0.67:
        chosen = rng.choices(phases, k=kills)
        aims = [(phase, rng.choice(["worker", "worker", "jobmanager"])) for phase in chosen]
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
        aims=tuple(aims),
    )


@click.command()
@click.option("--kills", default=100, show_default=True, help="How many kills in all.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
def main(kills: int, seed: int | None) -> None:
    """Kill jobs with event time and count what is lost or doubled."""
    lost = doubled = 0
    phases: Counter[str] = Counter()
    results: Counter[str] = Counter()
    with soaking(kills, seed) as (rng, console, told):
        while phases.total() < kills:
            folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
            wanted = min(kills - phases.total(), rng.randint(4, 9))
            # Also the shortest run has late records.
            readers = rng.choice([1, 1, 2]) if phases else 1
            settings = _settings(rng, folder, wanted, readers)
            killer = Killer(
                random.Random(rng.random()),
                0 if settings.aims else wanted,
                ("worker", "worker", "jobmanager", "both"),
                after_snapshots=rng.choice([None, 1]),
            )
            at = [1, 2, 3] if settings.readers == 2 and rng.random() < 0.3 else [2]

            def job(settings: TimedSettings, at: list[int] = at) -> StreamExecutionEnvironment:
                return timed_job(replace(settings, parallelism=rng.choice(at)))

            run_to_the_end(settings, killer, job=job)
            struck = strikes(folder)
            phases.update(strike["phase"] for strike in struck)
            phases.update("at random" for _ in killer.killed)
            missing, extra, kinds, examples = history(settings)
            lost, doubled = lost + missing, doubled + extra
            results += kinds
            told(phases.total())
            if missing or extra:
                wrong = f"lost {missing}, doubled {extra} in {settings} at {at}"
                console.print(f"{wrong}: {examples} {struck} {killer.killed}")
            else:
                shutil.rmtree(folder)
    timers = results["timer"] + results["clock timer"]
    by_phase = " · ".join(f"{phase} {count}" for phase, count in phases.most_common())
    console.print(
        f"kills {phases.total()} · lost {lost} · doubled {doubled} · "
        f"sessions {results['session']} · timers {timers} · late {results['late']} · "
        f"by phase: {by_phase}",
        soft_wrap=True,
    )
    sys.exit(0 if lost == doubled == 0 and timers and results["late"] else 1)


if __name__ == "__main__":
    main()
