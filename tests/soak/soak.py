"""Kills workers and JobManagers of counting jobs at random, a hundred times in a row.

Run as `python -m tests.soak.soak [--kills N] [--seed S] [--scope SCOPE]`. Jobs differ in
parallelism, snapshot interval and where their state is kept; each is killed several times in any
phase, resumed when its JobManager died, and its committed output compared with what it must be. The
last line is `kills N · lost 0 · doubled 0 · restarts of a part 31 of 80`; the exit code is 0
exactly if nothing was lost or doubled.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    counting_job,
    expected_words,
    lost_and_doubled,
)
from tests.soak.killing import Verdict, command, kill_jobs, scope_option


def _draw(rng: random.Random, folder: Path, kills: int) -> tuple[Settings, list[int]]:
    del kills
    parallelism = rng.choice([1, 2, 2, 3])
    settings = Settings(
        folder,
        count=rng.choice([30_000, 60_000]),
        rate=rng.choice([20_000, 50_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
    )
    return settings, [parallelism]


def _judge(settings: Settings, killer: Killer) -> Verdict:
    del killer
    return Verdict(*lost_and_doubled(committed(settings.output), expected_words(settings)))


@command()
@scope_option
def main(kills: int, seed: int | None, scope: str | None) -> None:
    """Kill jobs at random and count what is lost or doubled."""
    sums = kill_jobs(kills, seed, _draw, counting_job, _judge, scope)
    print(sums.line())
    sys.exit(0 if sums.right else 1)


if __name__ == "__main__":
    main()
