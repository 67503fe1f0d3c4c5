"""Kills jobs with a join, asynchronous requests and Parquet sinks, a hundred times.

Run as `python -m tests.soak.api [--kills N] [--seed S] [--scope SCOPE]`. The job is that of
`api_job.py`. Jobs differ in readers, snapshot interval, mode, order and capacity of the requests,
in the sizes of records, and in where state is kept and watermarks come from. Each is killed several
times, at random or aimed at phases, and resumed when its JobManager died, sometimes at another
parallelism. The last line is like

    kills 100 · lost 0 · doubled 0 · restarts of a part 31 of 80 · pairs 121204 · windows 9023 ·
    requests sent again 5120 · restored in flight 2900 · restarts 74 · resumes 26 · by phase: …

and the exit code is 0 exactly if nothing was lost or doubled, and all of it happened: pairs and
windows, requests that were restored in flight and sent again, restarts and resumes. A result that
is wrong counts as doubled, and the right one in its place as lost.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from penstock import CheckpointingMode
from tests.processes.harness import Killer
from tests.soak.api_job import FUNCTION_PHASES, ApiSettings, api_job, verdict
from tests.soak.killing import Verdict, command, draw_aims, kill_jobs, scope_option

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


def _draw(rng: random.Random, folder: Path, kills: int) -> tuple[ApiSettings, list[int]]:
    mode = rng.choice([CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
    unaligned = mode is CheckpointingMode.UNALIGNED
    phases = [*PHASES, *(("log written", "replaying") if unaligned else ("before the cut",))]
    settings = ApiSettings(
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
        aims=draw_aims(rng, phases, kills),
    )
    return settings, [1, 2, 3] if rng.random() < 0.3 else [2]


def _judge(settings: ApiSettings, killer: Killer) -> Verdict:
    found = verdict(settings)
    events = Counter(event["event"] for event in killer.events)
    found.happened.update(restarts=events["restarting"], resumes=events["started"] - 1)
    return found


@command()
@scope_option
def main(kills: int, seed: int | None, scope: str | None) -> None:
    """Kill jobs with a join, requests and columns; count what is lost or doubled."""
    sums = kill_jobs(kills, seed, _draw, api_job, _judge, scope)
    happened = (f"{name} {sums.happened[kind]}" for kind, name in SAID.items())
    print(sums.line(*happened, f"by phase: {sums.by_phase()}"))
    sys.exit(0 if sums.right and all(sums.happened[kind] for kind in SAID) else 1)


if __name__ == "__main__":
    main()
