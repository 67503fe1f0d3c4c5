"""Kills jobs until there were so many kills, and counts what is lost or doubled.

The soaks differ in their jobs. Each one says how the settings of a job are drawn, how the job is
built, and how its output is judged; `kill_jobs` does the rest.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config.restart_scope import RestartScope
from tests.processes.aims import strikes
from tests.processes.harness import Killer, Settings, compared, run_to_the_end

S = TypeVar("S", bound=Settings)
Main = Callable[[int, int | None], None]

#: Facts that an example of wrong output lists, of each kind.
EXAMPLES = 5


@dataclass
class Verdict:
    """What the output of one job shows.

    Arguments:
        lost, doubled: how many facts are missing, and how many are wrong or there again.
        happened: what happened in the job, to show that the soak meant something.
        examples: some of the facts that are wrong.
    """

    lost: int
    doubled: int
    happened: Counter[str] = field(default_factory=Counter)
    examples: list[Any] = field(default_factory=list)

    @classmethod
    def of_facts(cls, seen: Counter[Any], wanted: set[Any], happened: Counter[str]) -> Verdict:
        """Return the verdict about a job whose output must hold each wanted fact once."""
        lost, doubled = compared(seen, wanted)
        extra = [fact for fact, times in seen.items() if times > 1 or fact not in wanted]
        examples = [
            *(("lost", *fact) for fact in sorted(wanted - seen.keys(), key=str)[:EXAMPLES]),
            *(("doubled", *fact) for fact in extra[:EXAMPLES]),
        ]
        return cls(lost, doubled, happened, examples)


@dataclass
class Sums:
    """What came of all jobs: kills by phase, restarts, and the sums of the verdicts.

    A restart of a part leaves at least one worker running.
    """

    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    partial: int = 0
    lost: int = 0
    doubled: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """Add the verdict about one more job."""
        self.lost += verdict.lost
        self.doubled += verdict.doubled
        self.happened += verdict.happened

    def count_restarts(self, events: Sequence[dict[str, Any]]) -> None:
        """Add the restarts of a job, given its events."""
        before: set[int] | None = None
        for event in events:
            if event["event"] == "started":
                before = None
            elif event["event"] == "workers":
                workers = set(event["pids"])
                if before is not None and workers != before:
                    self.restarts += 1
                    self.partial += bool(workers & before)
                before = workers

    @property
    def right(self) -> bool:
        """Whether nothing was lost or doubled."""
        return self.lost == self.doubled == 0

    def line(self, *parts: str) -> str:
        """Return the last line of a soak, with further parts."""
        counts = f"kills {self.kills.total()} · lost {self.lost} · doubled {self.doubled}"
        partial = f"restarts of a part {self.partial} of {self.restarts}"
        return " · ".join([counts, partial, *parts])

    def by_phase(self) -> str:
        """Return how many kills fell into each phase, as text."""
        return " · ".join(f"{phase} {count}" for phase, count in self.kills.most_common())


def command(kills: int = 100) -> Callable[[Main], click.Command]:
    """Make a command of the main function of a soak, which by default kills so often."""

    def decorate(main: Main) -> click.Command:
        seed = "Decides about everything random; printed at the start."
        main = click.option("--seed", type=int, help=seed)(main)
        main = click.option(
            "--kills", default=kills, show_default=True, help="How many kills in all."
        )(main)
        return click.command()(main)

    return decorate


#: Which restart scope the jobs of a soak have.
scope_option = click.option(
    "--scope",
    type=click.Choice([scope.value for scope in RestartScope]),
    help="What restarts after a failure; drawn for each job by default.",
)


def draw_aims(rng: random.Random, phases: Sequence[str], kills: int) -> tuple[tuple[str, str], ...]:
    """Aim all kills of a job at phases; one job of three gets no aims, and is killed at random."""
    if rng.random() >= 0.67:
        return ()
    chosen = rng.choices(phases, k=kills)
    return tuple((phase, rng.choice(["worker", "worker", "jobmanager"])) for phase in chosen)


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


def kill_jobs(
    kills: int,
    seed: int | None,
    draw: Callable[[random.Random, Path, int], tuple[S, list[int]]],
    build: Callable[[S], StreamExecutionEnvironment],
    judge: Callable[[S, Killer], Verdict],
    scope: str | None = None,
) -> Sums:
    """Run jobs and kill each several times, until there were so many kills; return the sums.

    The kills of a job come as its aims say, or at random moments if it has none. It is resumed when
    its JobManager died. The folder of a job with wrong output is kept.

    Arguments:
        kills: how many kills in all.
        seed: decides about everything random; None draws one.
        draw: draws the settings of a job, given its folder and the number of its kills, and the
            parallelisms of which each run takes one.
        build: builds the job.
        judge: compares its output with what it must be.
        scope: what restarts after a failure; None draws it for each job.
    """
    sums = Sums()
    with soaking(kills, seed) as (rng, console, told):
        while sums.kills.total() < kills:
            folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
            wanted = min(kills - sums.kills.total(), rng.randint(4, 9))
            settings, at = draw(rng, folder, wanted)
            killer = Killer(
                random.Random(rng.random()),
                0 if settings.aims else wanted,
                ("worker", "worker", "jobmanager", "both"),
                after_snapshots=rng.choice([None, 1]),
                # A job whose records come in parts gets the next part with each kill.
                gate=settings.gate if settings.parts > 1 else None,
            )

            wanted_scope = rng.choice(list(RestartScope)) if scope is None else RestartScope(scope)

            def job(
                settings: S, at: list[int] = at, wanted_scope: RestartScope = wanted_scope
            ) -> StreamExecutionEnvironment:
                environment = build(replace(settings, parallelism=rng.choice(at)))
                environment.config.restart_scope = wanted_scope
                return environment

            run_to_the_end(settings, killer, job=job)
            struck = strikes(folder)
            sums.kills.update(strike["phase"] for strike in struck)
            sums.kills.update("at random" for _ in killer.killed)
            verdict = judge(settings, killer)
            sums.add(verdict)
            sums.count_restarts(killer.events)
            told(sums.kills.total())
            if verdict.lost or verdict.doubled:
                wrong = f"lost {verdict.lost}, doubled {verdict.doubled} in {settings} at {at}"
                console.print(f"{wrong}: {verdict.examples} {struck} {killer.killed}")
            else:
                shutil.rmtree(folder)
    return sums
