"""Kill jobs from Kafka to Kafka, and publishers, and count lost and doubled records.

    python -m tests.soak.connectors_kafka --kills 300

Workers and JobManagers are killed, in both modes of the sink. Besides, publishers of snapshots are
killed and stopped at any step, and the stopped ones wake up when their successors have published:
half as many as kills. The last line has the counts. The exit status is 0 if nothing was lost,
doubled or out of order.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import get_args

from penstock.connectors.kafka.sink import ExactlyOnceMode
from penstock.testing.servers.kafka import KafkaServer
from tests.connectors.kafka.counting import counting_job, verdict
from tests.connectors.kafka.feeding import Fed, FeedingKiller
from tests.connectors.kafka.publishers import play
from tests.processes.harness import run_to_the_end
from tests.soak.killing import command


@command()
def main(kills: int, seed: int | None) -> None:
    """Kill jobs and publishers, and count what is lost, doubled or out of order."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rng, of_jobs, of_publishers, zombies = random.Random(seed), 0, 0, 0
    lost = doubled = disordered = 0
    with (
        tempfile.TemporaryDirectory(prefix="penstock-soak-") as name,
        KafkaServer(Path(name) / "broker") as server,
    ):
        while of_jobs + of_publishers < kills or zombies < kills // 2:
            if of_jobs + of_publishers < kills:
                wanted = rng.randint(6, 12)
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    found = kill_job(server, Path(folder), rng, wanted)
                of_jobs += found[0]
                lost, doubled = lost + found[1], doubled + found[2]
                disordered += found[3]
            outcome = play(server.address, server.create_topic(), rng, 30, 14)
            of_publishers += outcome.kills
            zombies += outcome.zombies
            lost, doubled = lost + outcome.lost, doubled + outcome.doubled
            disordered += not outcome.in_order
            print(
                f"kills {of_jobs + of_publishers} · zombies {zombies} · lost {lost} · "
                f"doubled {doubled}",
                flush=True,
            )
    print(
        f"kills {of_jobs + of_publishers} (of jobs {of_jobs}) · zombies {zombies} · lost {lost} · "
        f"doubled {doubled} · out of order {disordered}"
    )
    sys.exit(1 if lost or doubled or disordered else 0)


def kill_job(
    server: KafkaServer, folder: Path, rng: random.Random, kills: int
) -> tuple[int, int, int, int]:
    """Return the number of kills, and of records lost, doubled and out of order."""
    fed = Fed(server, partitions=rng.randint(1, 5), parts=kills + 1, size=rng.choice([50, 300]))
    output = server.create_topic(partitions=rng.randint(1, 3))
    fed.feed()
    killer = FeedingKiller(
        random.Random(rng.random()),
        kills,
        ("worker", "worker", "jobmanager", "both"),
        after_snapshots=rng.choice([None, 1]),
        fed=fed,
    )
    parallelisms, interval = rng.choice([[1], [2], [1, 2, 3]]), rng.choice([40, 100])
    mode = rng.choice(get_args(ExactlyOnceMode))
    run_to_the_end(
        None,  # type: ignore[arg-type]
        killer,
        job=lambda _: counting_job(fed, folder, output, rng.choice(parallelisms), interval, mode),
    )
    return len(killer.killed), *verdict(fed, output)


if __name__ == "__main__":
    main()
