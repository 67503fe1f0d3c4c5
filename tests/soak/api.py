"""Kills jobs with a join, asynchronous requests and Parquet sinks, a hundred times.

Run as `python -m tests.soak.api [--kills N] [--seed S]`. The job is that of `api_job.py`. Jobs
differ in readers, snapshot interval, mode, order and capacity of the requests, in the sizes of
records, and in where state is kept and watermarks come from. Each is killed several times, at
random or aimed at phases, and resumed when its JobManager died, sometimes at another parallelism.
The last line is like

    kills 100 · lost 0 · doubled 0 · pairs 121204 · windows 9023 · requests sent again 5120 ·
    restored in flight 2900 · restarts 74 · resumes 26 · by phase: …

and the exit code is 0 exactly if nothing was lost or doubled, and all of it happened: pairs and
windows, requests that were restored in flight and sent again, restarts and resumes. A result that
is wrong counts as doubled, and the right one in its place as lost.
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
from tests.soak.api_job import FUNCTION_PHASES, ApiSettings, api_job, history
from tests.soak.soak import soaking

#: The join has two inputs, so there is always something to align.
PHASES = (*FUNCTION_PHASES, "state written", "acknowledged", "published", "committing")
#: What the last line says, and must have happened.
SAID = {
    "pairs": "pairs",
    "windows": "windows",
    "again": "requests sent again",
    "restored": "restored in flight",
    "restarts": "restarts",
    "resumes": "resumes",
}


def _settings(rng: random.Random, folder: Path, kills: int) -> ApiSettings:
    """A job; two of three are killed with an aim and the others at random."""
    mode = rng.choice([CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
    unaligned = mode is CheckpointingMode.UNALIGNED
    phases = [*PHASES, *(("log written", "replaying") if unaligned else ("before the cut",))]
    aims: list[tuple[str, str]] = []
    if rng.random() < 0.67:
        chosen = rng.choices(phases, k=kills)
        aims = [(phase, rng.choice(["worker", "worker", "jobmanager"])) for phase in chosen]
    return ApiSettings(
        folder,
        count=rng.choice([4_000, 6_000]),
        rate=rng.choice([1_000, 2_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        seed=rng.randrange(10**6),
        readers=rng.choice([1, 2]),
        mode=mode,
        at_source=rng.random() < 0.5,
        ordered=rng.random() < 0.5,
        capacity=rng.choice([5, 50, 200]),
        text=rng.choice([0, 100, 5_000]),
        aims=tuple(aims),
    )


@click.command()
@click.option("--kills", default=100, show_default=True, help="How many kills in all.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
def main(kills: int, seed: int | None) -> None:
    """Kill jobs with a join, requests and columns; count what is lost or doubled."""
    lost = doubled = 0
    phases: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    with soaking(kills, seed) as (rng, console, told):
        while phases.total() < kills:
            folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
            wanted = min(kills - phases.total(), rng.randint(4, 9))
            settings = _settings(rng, folder, wanted)
            killer = Killer(
                random.Random(rng.random()),
                0 if settings.aims else wanted,
                ("worker", "worker", "jobmanager", "both"),
                after_snapshots=rng.choice([None, 1]),
            )
            at = [1, 2, 3] if rng.random() < 0.3 else [2]

            def job(settings: ApiSettings, at: list[int] = at) -> StreamExecutionEnvironment:
                return api_job(replace(settings, parallelism=rng.choice(at)))

            run_to_the_end(settings, killer, job=job)
            struck = strikes(folder)
            phases.update(strike["phase"] for strike in struck)
            phases.update("at random" for _ in killer.killed)
            missing, extra, counts, examples = history(settings)
            lost, doubled = lost + missing, doubled + extra
            happened += counts
            events = Counter(event["event"] for event in killer.events)
            happened.update(restarts=events["restarting"], resumes=events["started"] - 1)
            told(phases.total())
            if missing or extra:
                wrong = f"lost {missing}, doubled {extra} in {settings} at {at}"
                console.print(f"{wrong}: {examples} {struck} {killer.killed}")
            else:
                shutil.rmtree(folder)
    said = " · ".join(f"{name} {happened[kind]}" for kind, name in SAID.items())
    by_phase = " · ".join(f"{phase} {count}" for phase, count in phases.most_common())
    console.print(
        f"kills {phases.total()} · lost {lost} · doubled {doubled} · {said} · by phase: {by_phase}",
        soft_wrap=True,
    )
    sys.exit(0 if lost == doubled == 0 and all(happened[kind] for kind in SAID) else 1)


if __name__ == "__main__":
    main()
