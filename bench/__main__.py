"""`python -m bench NAME [--json] [options]`; without a name, the list of benchmarks.

Figures go to standard output, as a table or as one JSON object; progress goes to standard error.
A wrong result, which is not a matter of speed, ends with exit code 1 and no figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import checkpoint, cycles, latency, paper, recovery, spark, startup, wordcount
from bench.harness import Figures, Say, WrongResultError
from penstock import PenstockError

__all__ = ["main"]


@click.group(no_args_is_help=True, context_settings={"show_default": True})
def main() -> None:
    """Measure the engine on this machine; bench/NOTES.md says how to read the figures."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--folder",
        type=click.Path(exists=True, file_okay=False),
        help="Where snapshots and inputs lie; their disk is part of what is measured.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@main.command("wordcount")
@click.option("--lines", default=3_000_000, help="Lines of 10 words each.")
@click.option("--rounds", default=2, help="Runs; the limit program has one more.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _wordcount(lines: int, rounds: int, interval: float, folder: str | None, as_json: bool) -> None:
    """A keyed word count, against a program without an engine."""
    _show(as_json, lambda say: wordcount.measure(lines, rounds, interval, folder, say))


@main.command("latency")
@click.option("--rate", default=1_000, help="Records per second.")
@click.option("--seconds", default=20.0, help="How long.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _latency(rate: int, seconds: float, interval: float, folder: str | None, as_json: bool) -> None:
    """From a source to a sink through one keyed shuffle."""
    _show(as_json, lambda say: latency.measure(rate, seconds, interval, folder, say))


@main.command("checkpoint")
@click.option("--keys", default=100_000, help="Keys of each worker, all changed each time.")
@click.option("--snapshots", default=100, help="How many, at each load.")
@click.option("--interval", default=0.2, help="Least seconds between two snapshots.")
@_common
def _checkpoint(
    keys: int, snapshots: int, interval: float, folder: str | None, as_json: bool
) -> None:
    """How long snapshots take, and how long records stand still."""
    _show(as_json, lambda say: checkpoint.measure(keys, snapshots, interval, folder, say))


@main.command("recovery")
@click.option("--kills", default=5, help="For each size of state.")
@click.option("--rate", default=10_000, help="Records per second.")
@click.option("--interval", default=200.0, help="Milliseconds between two snapshots.")
@click.option("--seed", default=1, help="Of the moments and the victims.")
@_common
def _recovery(
    kills: int, rate: int, interval: float, seed: int, folder: str | None, as_json: bool
) -> None:
    """SIGKILL of a worker, until every task works again."""
    _show(
        as_json,
        lambda say: recovery.measure(kills, rate, interval, seed, folder=folder, say=say),
    )


@main.command("cycles")
@click.option("--records", default=1_000_000, help="Each hops ten times.")
@click.option("--rounds", default=3, help="Of the loop, the loop without snapshots, and ten steps.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _cycles(records: int, rounds: int, interval: float, folder: str | None, as_json: bool) -> None:
    """A keyed loop, against the same steps one after the other."""
    _show(as_json, lambda say: cycles.measure(records, rounds, interval, folder, say))


@main.command("startup")
@click.option("--rounds", default=5, help="Starts.")
@click.option("--idle", default=10.0, help="Seconds for which an idle job is watched.")
@_common
def _startup(rounds: int, idle: float, folder: str | None, as_json: bool) -> None:
    """How soon a job runs, and what it costs while it is idle."""
    _show(as_json, lambda say: startup.measure(rounds, idle, folder, say))


@main.command("spark")
@click.option("--rows", default=6_000_000, help="Rows of the table.")
@click.option("--rounds", default=2, help="Of everything; medians are quoted.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@click.option("--quick", is_flag=True, help="2,000 rows once, to see that it works.")
@_common
def _spark(
    rows: int, rounds: int, interval: float, quick: bool, folder: str | None, as_json: bool
) -> None:
    """From a Spark table through a job to another, against Spark by itself."""
    if quick:
        rows, rounds = 2_000, 1
    _show(as_json, lambda say: spark.measure(rows, rounds, interval, folder, say))


@main.command("paper")
@click.option("--rounds", default=5, help="Runs of each protocol at each interval.")
@click.option("--quick", is_flag=True, help="Intervals of 0.1, 1 and 3 s only.")
@_common
def _paper(rounds: int, quick: bool, folder: str | None, as_json: bool) -> None:
    """What snapshots cost, by protocol and interval: figures 6 and 7 of the paper."""
    intervals = paper.QUICK_INTERVALS if quick else paper.INTERVALS
    parallelisms = (1, 2) if quick else (1, 2, 4, 8)
    _show(as_json, lambda say: paper.measure(intervals, rounds, parallelisms, folder, say))


def _show(as_json: bool, measure: Callable[[Say], Figures]) -> None:
    """Run a benchmark and print its figures. Exits with 1 if its result is wrong."""
    errors = Console(stderr=True)
    try:
        if as_json:
            figures = measure(lambda _: None)
        else:
            with errors.status("starting") as status:
                figures = measure(status.update)
    except (WrongResultError, PenstockError) as error:
        errors.print(f"[bold red]{type(error).__name__}[/]", error, highlight=False)
        sys.exit(1)
    if as_json:
        print(json.dumps(figures))
        return
    table = Table(show_header=False, box=None)
    for name, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name, shown)
    Console().print(table)


if __name__ == "__main__":
    main()
