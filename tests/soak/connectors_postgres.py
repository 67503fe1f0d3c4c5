"""Kill jobs with PostgreSQL, and their server, and count lost and doubled records.

    python -m tests.soak.connectors_postgres --kills 100

Half of the jobs count words into tables, and half copy a table by its changes. Workers, the
JobManager and the server are killed, and connections are cut. The last lines have the counts, and
the exit status is 0 if nothing was lost or doubled.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from penstock.testing.servers.postgres import PostgresServer
from tests.connectors.postgres.postgres_jobs import (
    copy_table,
    counting_job,
    create_counts,
    cut,
    disturber,
    judge_counts,
    restart,
)
from tests.processes.harness import Settings, run_to_the_end
from tests.soak.killing import command


@command()
def main(kills: int, seed: int | None) -> None:
    """Kill jobs, and count what is lost or doubled."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rng, done, changes = random.Random(seed), 0, 0
    faults: Counter[str] = Counter()
    lost = doubled = jobs = 0
    while done < kills:
        wanted = min(kills - done, rng.randint(5, 10))
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
            settings = Settings(
                Path(name),
                count=rng.choice([6_000, 12_000]),
                interval_ms=rng.choice([40, 80, 200]),
                parts=wanted + 1,
                parallelism=rng.choice([1, 2, 3]),
            )
            with PostgresServer(settings.folder / "pg") as server:
                database = server.create_database()
                killer = disturber(
                    rng.randrange(10**6),
                    wanted,
                    gate=settings.gate if jobs % 2 == 0 else None,
                    faults=(restart(server), cut(database)),
                    disturbances=wanted,
                )
                if jobs % 2 == 0:
                    create_counts(database)
                    run_to_the_end(settings, killer, job=partial(counting_job, database=database))
                    killer.settle()
                    found = judge_counts(settings, database)
                else:
                    *found, count = copy_table(settings, database, killer, rng.randrange(10**6))
                    changes += count
        jobs, done = jobs + 1, done + len(killer.killed)
        faults.update([*killer.done, *(f"{target} killed" for target, _ in killer.killed)])
        lost, doubled = lost + found[0], doubled + found[1]
        print(f"kills {done} · lost {lost} · doubled {doubled}", flush=True)
    happened = " · ".join(f"{fault} {count}" for fault, count in faults.most_common())
    print(f"kills {done} · lost {lost} · doubled {doubled} · changes copied {changes}")
    print(happened)
    sys.exit(0 if not (lost or doubled) else 1)


if __name__ == "__main__":
    main()
