"""Kill jobs from Redis to Redis, and their server, and count lost and doubled records.

    python -m tests.soak.connectors_redis --kills 100

Workers, the JobManager and the server are killed, connections are cut, and the server is stopped
for a moment. The last lines have the
counts, and the exit status is 0 if nothing was lost, doubled or out of order.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import redis

from penstock.testing.servers.redis import RedisServer
from tests.connectors.disturber import disturber, freeze
from tests.connectors.redis.redis_job import (
    cut,
    fill,
    redis_job,
    restart,
    verdict,
)
from tests.connectors.zombies import RECORDS, haunt, written
from tests.processes.harness import Settings, run_to_the_end
from tests.soak.killing import command


@command()
def main(kills: int, seed: int | None) -> None:
    """Kill jobs, and count what is lost, doubled or out of order."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rng, done = random.Random(seed), 0
    faults: Counter[str] = Counter()
    wrong = [0, 0, 0]
    while done < kills:
        wanted = min(kills - done, rng.randint(8, 15))
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
            settings = Settings(
                Path(name),
                count=rng.choice([6_000, 12_000]),
                interval_ms=rng.choice([40, 80, 200]),
                parts=wanted + 1,
                parallelism=rng.choice([1, 2, 3]),
            )
            with (
                RedisServer(settings.folder / "redis") as server,
                redis.Redis(port=server.port) as client,
            ):
                fill(client, "", settings.count)
                killer = disturber(
                    rng.randrange(10**6),
                    settings,
                    wanted,
                    faults=(restart(server), cut(client), freeze(server)),
                    disturbances=wanted,
                )
                run_to_the_end(settings, killer, job=lambda s: redis_job(s, "", server.url))
                killer.settle()
                found = verdict(client, "", settings.count)
        done += len(killer.killed)
        faults.update([*killer.done, *(f"{target} killed" for target, _ in killer.killed)])
        wrong = [a + b for a, b in zip(wrong, found, strict=True)]
        print(f"kills {done} · lost {found[0]} · doubled {found[1]}", flush=True)
    zombies = max(1, kills // 2)
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name, RedisServer(name) as server:
        slept, killed = haunt("redis", server.url, "ZOMBIES", zombies, rng)
        found = written("redis", server.url, "ZOMBIES")
    expected = list(range(2 * zombies * RECORDS))
    wrong[0] += len(set(expected) - set(found))
    wrong[1] += len(found) - len(set(found))
    wrong[2] += found != expected
    faults.update({"zombies": slept, "publishers killed": killed})
    happened = " · ".join(f"{fault} {count}" for fault, count in faults.most_common())
    print(f"kills {done} · lost {wrong[0]} · doubled {wrong[1]} · out of order {wrong[2]}")
    print(happened)
    sys.exit(0 if not any(wrong) else 1)


if __name__ == "__main__":
    main()
