"""`make bench-compare BASE=REVISION`: is the engine of this tree faster or slower than another's?

    python -m bench.compare REVISION [--bench NAME] [--rounds N] [-- OPTIONS OF THE BENCHMARK]

The engine (`penstock/`) of the revision and that of the working tree, with what is not committed,
are copied into two temporary folders; the user's tree is only read. A round is one run of the
benchmark on either, in turns and in alternating order, since machines vary more from minute to
minute than engines do. For each figure that is a rate or a time, the result is the ratio of the
tree to the revision: the geometric mean over the rounds of the ratio within a round, with a 95 %
interval by Student's t over the logarithms. An interval that has 1 in it shows no difference.

**Both engines run the working tree's benchmark** (`bench/`), so that both do the same. If the
engine of the revision cannot run it, both run the revision's benchmark. If the engine of the tree
cannot run that one, each engine runs its own benchmark: the ratios then hold only if the two
benchmarks do the same. The output says which. This module measures nothing itself.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.common.harness import Figures, Say, machine

__all__ = [
    "BENCH",
    "ENGINE",
    "ROOT",
    "CompareError",
    "check_out",
    "compare",
    "interval_95",
    "main",
    "numbers",
    "run_module",
]

ROOT = Path(__file__).resolve().parents[1]
#: The engine, and the benchmarks.
ENGINE, BENCH = "penstock", "bench"
#: Runs that are long enough to compare by, and shorter than those that figures are quoted from.
SHORTER: dict[str, tuple[str, ...]] = {
    "wordcount": ("--rounds", "1", "--lines", "1500000"),
    "latency": ("--seconds", "8"),
    "checkpoint": ("--snapshots", "20"),
    "recovery": ("--kills", "2"),
    "cycles": ("--rounds", "1"),
    "limit": ("--rounds", "1"),
    "startup": ("--rounds", "3", "--idle", "5"),
    "paper": ("--quick", "--rounds", "1"),
    "spark": ("--rounds", "1"),
}
#: Names of figures that are rates, times, or ratios of these.
RATE_OR_TIME = re.compile(
    r"(per_second|_ms|_ns|_seconds|_percent|_overhead)(_|\.|$)|(^|[._])(seconds|ratio)([._]|$)"
)


class CompareError(Exception):
    """The two revisions cannot be compared."""


def compare(
    revision: str,
    bench: str = "wordcount",
    rounds: int = 5,
    options: Sequence[str] | None = None,
    root: Path = ROOT,
    say: Say = print,
) -> Figures:
    """Run a benchmark on two revisions of the engine in turns.

    Arguments:
        revision: of the engine to compare with, as git names it.
        bench: name of the benchmark.
        rounds: runs on either, at least 2.
        options: of the benchmark; None for shorter runs than it makes by itself.
        root: the working tree.
        say: told what happens.

    Returns:
        `ratios`: by figure, the `ratio` of the tree to the revision with `low` and `high`, and the
        medians of both. `benchmark_of`: whose benchmark it was.

    Raises:
        CompareError: if there is no such revision, or the benchmark fails on either.
    """
    if rounds < 2:
        raise CompareError(f"{rounds} rounds have no spread: take at least 2")
    arguments = [bench, "--json", *(SHORTER.get(bench, ()) if options is None else options)]
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as name:
        base, tree = Path(name, "base"), Path(name, "tree")
        commit = check_out(root, revision, base)
        for part in (ENGINE, BENCH):
            shutil.copytree(root / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        own = base / f"{BENCH}-of-base"
        if (base / BENCH).exists():
            (base / BENCH).rename(own)
        shutil.copytree(tree / BENCH, base / BENCH)
        whose = _choose_benchmark(base, tree, own, commit, arguments, say)
        runs = _rounds(base, tree, arguments, rounds, say)
    return {
        "base": f"{revision} ({commit})",
        "bench": " ".join(arguments),
        "benchmark_of": whose,
        "rounds": rounds,
        "ratios": dict(_ratios(*runs)),
        **machine(),
    }


def _choose_benchmark(
    base: Path, tree: Path, own: Path, commit: str, arguments: list[str], say: Say
) -> str:
    """Put the benchmarks that the engines run into their folders, and return whose they are.

    Arguments:
        base: folder with the engine of the revision and the benchmarks of the tree.
        tree: folder with engine and benchmarks of the tree.
        own: folder with the benchmarks of the revision, if it has any.
        commit: short name of the revision.
        arguments: of the benchmark.
        say: called with lines of progress.

    Raises:
        CompareError: if the revision runs neither the tree's benchmark nor one of its own.
    """
    say(f"a first run on {commit}, to see whether the benchmark of the tree runs there")
    try:
        _run(base, arguments)
    except CompareError as error:
        if not own.exists():
            raise
        say(f"it does not: {error}")
    else:
        return "the working tree"
    kept = tree / f"{BENCH}-of-tree"
    (tree / BENCH).rename(kept)
    for place in (base, tree):
        shutil.rmtree(place / BENCH, ignore_errors=True)
        shutil.copytree(own, place / BENCH)
    say(f"a first run of the benchmark of {commit} on the tree")
    try:
        _run(tree, arguments)
    except CompareError as error:
        say(f"it does not run there ({error}); each engine runs its own benchmark")
        shutil.rmtree(tree / BENCH)
        kept.rename(tree / BENCH)
        return "each engine's own"
    say(f"both engines run the benchmark of {commit}")
    return f"the revision ({commit})"


def check_out(root: Path, revision: str, place: Path) -> str:
    """Write the engine and benchmarks of a revision into a folder; its short name."""
    commit = _git(root, "rev-parse", "--short", "--verify", f"{revision}^{{commit}}").decode()
    there = _git(root, "ls-tree", "--name-only", revision, f"{ENGINE}/", f"{BENCH}/").decode()
    parts = [part for part in (ENGINE, BENCH) if f"{part}/" in there]
    if ENGINE not in parts:
        raise CompareError(f"{revision} has no folder {ENGINE}/: give a revision with an engine")
    archive = _git(root, "archive", "--format=zip", revision, *parts)
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        packed.extractall(place)
    return commit.strip()


def _git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    if done.returncode:
        raise CompareError(
            f"git {arguments[0]} failed in {root}: {done.stderr.decode().strip()}; "
            f"give a revision that `git log` knows, such as HEAD~1"
        )
    return done.stdout


def _rounds(
    base: Path, tree: Path, arguments: list[str], rounds: int, say: Say
) -> tuple[list[Figures], list[Figures]]:
    """Return the figures of all runs on the base, and of all on the tree."""
    runs: dict[Path, list[Figures]] = {base: [], tree: []}
    for number in range(rounds):
        # Whoever goes first may find the machine cooler, or the disk emptier.
        for place in (base, tree) if number % 2 == 0 else (tree, base):
            say(f"round {number + 1} of {rounds}: {place.name}")
            runs[place].append(numbers(_run(place, arguments)))
    return runs[base], runs[tree]


def _run(place: Path, arguments: list[str]) -> Figures:
    """Return the figures of one run with the engine and the benchmarks of a folder."""
    done = run_module(place, BENCH, arguments)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CompareError(f"bench {' '.join(arguments)} failed in {place.name}: {last}")
    try:
        figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise CompareError(
            f"bench {' '.join(arguments)} in {place.name} did not print a JSON object: {error}"
        ) from error
    return figures


def run_module(place: Path, module: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a module as a program, with the engine and the benchmarks of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    # Which package it is must be sure: the virtual environment has one of the same name.
    script = (
        "import runpy, sys, penstock; sys.argv[0] = 'bench'; "
        f"assert penstock.__file__.startswith({str(place)!r}), penstock.__file__; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )


def numbers(figures: Any, name: str = "") -> Figures:
    """All numbers in what a benchmark printed, by name, with dots where it was nested."""
    if isinstance(figures, dict):
        nested = [(f"{name}.{key}" if name else key, value) for key, value in figures.items()]
    elif isinstance(figures, list):
        # What each of several runs within a run came to is in their median already.
        if name.rpartition(".")[2].startswith("all_"):
            return {}
        nested = [(f"{name}.{index}", value) for index, value in enumerate(figures)]
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        return {name: float(figures)}
    else:
        return {}
    return {own: value for key, item in nested for own, value in numbers(item, key).items()}


def _ratios(base: list[Figures], tree: list[Figures]) -> Iterator[tuple[str, Figures]]:
    """By figure, how the tree compares with the base."""
    for name in base[0]:
        if not RATE_OR_TIME.search(name):
            continue
        before = [one.get(name, 0.0) for one in base]
        after = [one.get(name, 0.0) for one in tree]
        if min(before + after) <= 0:
            continue  # not to be had in some run, or nothing to divide by
        if len({*before, *after}) == 1:
            continue  # an option, not a measurement
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        middle, low, high = interval_95(ratios)
        yield (
            name,
            {
                "ratio": round(middle, 4),
                "low": round(low, 4),
                "high": round(high, 4),
                "base": statistics.median(before),
                "tree": statistics.median(after),
            },
        )


def interval_95(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of positive ratios, and where it lies with 95 % confidence.

    Raises:
        ValueError: if there are fewer than two.
    """
    # Only here: it takes a second to load, and workers import the modules of benchmarks.
    from scipy.stats import t

    if len(ratios) < 2:
        raise ValueError(f"{len(ratios)} ratios have no spread")
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    reach = float(t.ppf(0.975, len(logarithms) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


@click.command(context_settings={"show_default": True})
@click.argument("revision")
@click.option("--bench", default="wordcount", help="Which benchmark.")
@click.option("--rounds", default=5, help="Runs on either engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(revision: str, bench: str, rounds: int, as_json: bool, options: tuple[str, ...]) -> None:
    """Compare the engine of this tree with that of REVISION; after --, OPTIONS of the benchmark."""
    errors = Console(stderr=True, highlight=False)
    try:
        result = compare(revision, bench, rounds, options or None, say=errors.print)
    except CompareError as error:
        errors.print(f"[bold red]{type(error).__name__}[/]", error)
        sys.exit(1)
    if as_json:
        print(json.dumps(result))
        return
    table = Table("figure", "base", "tree", "tree / base", "95 %", "", box=None)
    for name, one in result["ratios"].items():
        differs = not one["low"] <= 1 <= one["high"]
        spread = f"{one['low']:.3f} – {one['high']:.3f}"
        cells = (f"{one['base']:,g}", f"{one['tree']:,g}", f"{one['ratio']:.3f}", spread)
        table.add_row(name, *cells, "differs" if differs else "")
    output = Console()
    output.print(table)
    output.print(
        f"base: {result['base']}; benchmark of {result['benchmark_of']}; {result['rounds']} rounds "
        f"of {result['bench']}; load average {result['load_average']}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
