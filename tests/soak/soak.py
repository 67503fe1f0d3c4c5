"""Kills workers and JobManagers of counting jobs at random, a hundred times in a row.

Run as `python -m tests.soak.soak [--kills N] [--seed S]`. Jobs differ in parallelism, snapshot
interval and where their state is kept; each is killed several times in any phase, resumed when
its JobManager died, and its committed output compared with what it must be. The last line is
`kills N · lost 0 · doubled 0`; the exit code is 0 exactly if both are zero.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.processes.harness import (
    Killer,
    Settings,
    committed,
    expected_words,
    lost_and_doubled,
    run_to_the_end,
)


@contextmanager
def soaking(
    kills: int, seed: int | None
) -> Iterator[tuple[random.Random, Console, Callable[[int], None]]]:
    """Show how far it is: what draws, where to print, and what is told how many kills are done."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console = Console(highlight=False)
    console.print(f"seed {seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("kills", total=kills)

        def told(done: int) -> None:
            progress.update(bar, completed=min(done, kills))

        yield random.Random(seed), console, told


@click.command()
@click.option("--kills", default=100, show_default=True, help="How many kills in all.")
@click.option("--seed", type=int, help="Decides about everything random; printed at the start.")
def main(kills: int, seed: int | None) -> None:
    """Kill jobs at random and count what is lost or doubled."""
    done = lost = doubled = 0
    with soaking(kills, seed) as (rng, console, told):
        while done < kills:
            folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
            settings = Settings(
                folder,
                count=rng.choice([30_000, 60_000]),
                rate=rng.choice([20_000, 50_000, None]),
                interval_ms=rng.choice([20, 50, 100, 250]),
                inline_threshold=rng.choice([0, 64 * 1024]),
                parallelism=rng.choice([1, 2, 2, 3]),
            )
            killer = Killer(
                random.Random(rng.random()),
                min(kills - done, rng.randint(3, 12)),
                ("worker", "worker", "jobmanager", "both"),
                after_snapshots=rng.choice([None, None, 1]),
            )
            run_to_the_end(settings, killer)
            missing, extra = lost_and_doubled(committed(settings.output), expected_words(settings))
            lost, doubled, done = lost + missing, doubled + extra, done + len(killer.killed)
            told(done)
            if missing or extra:
                console.print(f"lost {missing}, doubled {extra} in {settings}: {killer.killed}")
            else:
                shutil.rmtree(folder)
    console.print(f"kills {done} · lost {lost} · doubled {doubled}")
    sys.exit(0 if lost == doubled == 0 else 1)


if __name__ == "__main__":
    main()
