"""Kills jobs with loops a hundred times, with records in flight, aimed at phases and at random.

Run as `python -m tests.soak.cycles [--kills N] [--seed S]`. Jobs differ in parallelism, snapshot
interval, memory (so that some spill) and where state is kept; each is killed several times, and
resumed when its JobManager died, some of them at another parallelism each time. The complete
history of all records is compared with what it must be. The last line is like

    kills 100 · lost 0 · doubled 0 · restores with a log 57 · by phase: while logging 14 · …

and the exit code is 0 exactly if nothing was lost or doubled and at least 30 of 100 kills were
followed by a restore that had records in a log.
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

from penstock import StreamExecutionEnvironment
from tests.processes.aims import JOBMANAGER_PHASES, WORKER_PHASES, strikes
from tests.processes.harness import Killer, committed, run_to_the_end
from tests.processes.looping import LoopSettings, history, looping_job, restored_logs
from tests.soak.soak import soaking

#: Of the kills, so many must have been followed by a restore with records in a log.
WITH_A_LOG = 0.3


def _settings(rng: random.Random, folder: Path, kills: int) -> LoopSettings:
    """A job; two of three are killed with an aim and the others at random."""
    spills = rng.random() < 0.4
    aims: list[tuple[str, str]] = []
    if rng.random() < 0.67:
        phases = rng.choices([*WORKER_PHASES, *JOBMANAGER_PHASES], k=kills)
        aims = [(phase, rng.choice(["worker", "worker", "jobmanager"])) for phase in phases]
    return LoopSettings(
        folder,
        count=rng.choice([1_000, 2_000]),
        rate=rng.choice([2_000, 4_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        parallelism=rng.choice([1, 2, 2, 3]),
        hops=rng.choice([10, 20]),
        padding=400 if spills else 0,
        memory=(256 if spills else 512 * 1024) * 1024,
        aims=tuple(aims),
        # At a parallelism of 1 some of the phases do not occur, so there is nothing to wait for.
        rounds=0,
    )


@click.command()
@click.option("--kills", default=100, show_default=True, help="How many kills in all.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
def main(kills: int, seed: int | None) -> None:
    """Kill looping jobs and count what is lost or doubled."""
    lost = doubled = with_a_log = 0
    phases: Counter[str] = Counter()
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
            at = [1, 2, 3] if rng.random() < 0.3 else [settings.parallelism]

            def job(settings: LoopSettings, at: list[int] = at) -> StreamExecutionEnvironment:
                return looping_job(replace(settings, parallelism=rng.choice(at)))

            run_to_the_end(settings, killer, job=job)
            struck = strikes(folder)
            phases.update(strike["phase"] for strike in struck)
            phases["at random"] += len(killer.killed)
            with_a_log += sum(records > 0 for records in restored_logs(killer.events))
            missing, extra = history(settings, committed(settings.output))
            lost, doubled = lost + missing, doubled + extra
            told(phases.total())
            if missing or extra:
                wrong = f"lost {missing}, doubled {extra} in {settings}"
                console.print(f"{wrong}: {struck} {killer.killed}")
            else:
                shutil.rmtree(folder)
    by_phase = " · ".join(f"{phase} {count}" for phase, count in phases.most_common())
    console.print(
        f"kills {phases.total()} · lost {lost} · doubled {doubled} · "
        f"restores with a log {with_a_log} · by phase: {by_phase}",
        soft_wrap=True,
    )
    sys.exit(0 if lost == doubled == 0 and with_a_log >= WITH_A_LOG * kills else 1)


if __name__ == "__main__":
    main()
