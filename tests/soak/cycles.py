"""Kills jobs with loops a hundred times, with records in flight, aimed at phases and at random.

Run as `python -m tests.soak.cycles [--kills N] [--seed S] [--scope SCOPE]`. Jobs differ in
parallelism, snapshot interval, memory (so that some spill) and where state is kept; each is killed
several times, and resumed when its JobManager died, some of them at another parallelism each time.
The complete history of all records is compared with what it must be. The last line is like

    kills 100 · lost 0 · doubled 0 · restarts of a part 31 of 80 ·
    restores with a log 57 · by phase: while logging 14 · …

and the exit code is 0 exactly if nothing was lost or doubled and at least 30 of 100 kills were
followed by a restore that had records in a log.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from tests.processes.aims import JOBMANAGER_PHASES, WORKER_PHASES
from tests.processes.harness import Killer, committed
from tests.processes.looping import LoopSettings, history, looping_job, restored_logs
from tests.soak.killing import Verdict, command, draw_aims, kill_jobs, scope_option

#: Of the kills, so many must have been followed by a restore with records in a log.
WITH_A_LOG = 0.3


def _draw(rng: random.Random, folder: Path, kills: int) -> tuple[LoopSettings, list[int]]:
    spills = rng.random() < 0.4
    settings = LoopSettings(
        folder,
        count=rng.choice([1_000, 2_000]),
        rate=rng.choice([2_000, 4_000, None]),
        interval_ms=rng.choice([20, 50, 100, 250]),
        inline_threshold=rng.choice([0, 64 * 1024]),
        parallelism=rng.choice([1, 2, 2, 3]),
        hops=rng.choice([10, 20]),
        padding=400 if spills else 0,
        memory=(256 if spills else 512 * 1024) * 1024,
        aims=draw_aims(rng, [*WORKER_PHASES, *JOBMANAGER_PHASES], kills),
        # At a parallelism of 1 some of the phases do not occur, so there is nothing to wait for.
        rounds=0,
    )
    return settings, [1, 2, 3] if rng.random() < 0.3 else [settings.parallelism]


def _judge(settings: LoopSettings, killer: Killer) -> Verdict:
    with_a_log = sum(records > 0 for records in restored_logs(killer.events))
    return Verdict(*history(settings, committed(settings.output)), Counter(with_a_log=with_a_log))


@command()
@scope_option
def main(kills: int, seed: int | None, scope: str | None) -> None:
    """Kill looping jobs and count what is lost or doubled."""
    sums = kill_jobs(kills, seed, _draw, looping_job, _judge, scope)
    with_a_log = sums.happened["with_a_log"]
    print(sums.line(f"restores with a log {with_a_log}", f"by phase: {sums.by_phase()}"))
    sys.exit(0 if sums.right and with_a_log >= WITH_A_LOG * kills else 1)


if __name__ == "__main__":
    main()
