"""Kills workers and JobManagers of jobs with two regions at random, a hundred times in a row.

Run as `python -m tests.soak.regions [--kills N] [--seed S]`. As `soak.py`, but each job counts two
streams that exchange no records, and a failure restarts only its region. Some jobs have processes
that stand by. The soak counts the restarts of regions, to show that they happened.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config.restart_scope import RestartScope
from tests.processes.harness import Killer, Settings
from tests.processes.test_regions import lost_and_doubled_of, regions_job
from tests.soak.killing import Verdict, command, kill_jobs


def _draw(rng: random.Random, folder: Path, kills: int) -> tuple[Settings, list[int]]:
    settings = Settings(
        folder,
        count=rng.choice([20_000, 40_000]),
        rate=rng.choice([20_000, 50_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        parts=kills + 1,
    )
    return settings, [rng.choice([1, 2, 2])]


def _build(settings: Settings) -> StreamExecutionEnvironment:
    env = regions_job(settings)
    env.config.restart_standby = settings.count // 20_000 - 1
    return env


def _judge(settings: Settings, killer: Killer) -> Verdict:
    verdict = Verdict(*lost_and_doubled_of(settings))
    restarts = [event for event in killer.events if event["event"] == "restarted"]
    verdict.happened["regions restarted"] = sum("region" in event for event in restarts)
    verdict.happened["jobs restarted"] = sum("region" not in event for event in restarts)
    return verdict


@command()
def main(kills: int, seed: int | None) -> None:
    """Kill jobs at random and count what is lost or doubled."""
    sums = kill_jobs(kills, seed, _draw, _build, _judge, RestartScope.REGION)
    happened = sums.happened
    print(" · ".join(f"{what} {count}" for what, count in happened.items()))
    print(sums.line())
    sys.exit(0 if sums.right and happened["regions restarted"] else 1)


if __name__ == "__main__":
    main()
