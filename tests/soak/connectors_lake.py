"""Kills jobs that read and write objects and tables of a lake, a hundred times for each kind.

Run as `python -m tests.soak.connectors_lake [--kills N] [--seed S] [--kind KIND]`. The kinds are
objects in a store, Delta tables, Iceberg tables, and Delta tables in a store. It starts a server of
the S3 protocol. The last line is `kills N · lost 0 · doubled 0`; the exit code is 0 exactly if both
are zero.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from penstock.testing.servers.s3 import S3Server
from tests.connectors.lake.lake_job import LakeSettings, lake_job, lost_and_doubled_rows
from tests.connectors.object_store.objects_job import ObjectSettings, objects_job
from tests.processes.harness import Killer, lost_and_doubled
from tests.soak.killing import Sums, Verdict, kill_jobs

KINDS = ("objects", "delta", "iceberg", "store")


def soak_objects(server: S3Server, kills: int, seed: int | None) -> Sums:
    """Kill jobs that read and write objects."""

    def draw(rng: random.Random, folder: Path, kills: int) -> tuple[ObjectSettings, list[int]]:
        settings = ObjectSettings(
            folder,
            count=rng.choice([4_000, 8_000]),
            interval_ms=rng.choice([50, 100, 250]),
            parts=kills + 1,
            url=f"s3://soak/{rng.getrandbits(60):x}",
            options=server.options,
            compact_bytes=rng.choice([0, 3000]),
        )
        settings.put_input()
        return settings, [rng.choice([1, 2, 3])]

    def judge(settings: ObjectSettings, killer: Killer) -> Verdict:
        del killer
        return Verdict(*lost_and_doubled(settings.read_output(), settings.expected()))

    return kill_jobs(kills, seed, draw, objects_job, judge)


def soak_tables(server: S3Server, kind: str, kills: int, seed: int | None) -> Sums:
    """Kill jobs that read and write tables of one kind."""

    def draw(rng: random.Random, folder: Path, kills: int) -> tuple[LakeSettings, list[int]]:
        settings = LakeSettings(
            folder,
            count=rng.choice([2_000, 4_000]),
            interval_ms=rng.choice([100, 250, 500]),
            parts=kills + 1,
            kind=kind,
            url=f"s3://soak/{rng.getrandbits(60):x}",
            options=server.options,
            mode="append" if kind == "store" else rng.choice(["append", "append", "upsert"]),
        )
        settings.create_tables()
        return settings, [rng.choice([1, 2, 3])]

    def judge(settings: LakeSettings, killer: Killer) -> Verdict:
        del killer
        return Verdict(*lost_and_doubled_rows(settings))

    return kill_jobs(kills, seed, draw, lake_job, judge)


@click.command()
@click.option("--kills", default=100, help="How many kills, of each kind.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, default=KINDS)
def main(kills: int, seed: int | None, kind: Any) -> None:
    """Kill jobs at random and count what is lost or doubled."""
    total = Sums()
    with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
        server.create_bucket("soak")
        for one in kind:
            if one == "objects":
                sums = soak_objects(server, kills, seed)
            else:
                sums = soak_tables(server, one, kills, seed)
            print(f"{one}: {sums.line()}", flush=True)
            total.kills += sums.kills
            total.add(Verdict(sums.lost, sums.doubled))
    print(total.line())
    sys.exit(0 if total.right else 1)


if __name__ == "__main__":
    main()
