"""`python -m bench NAME [--json] [options]`; without a name, the list of benchmarks.

Figures go to standard output, as a table or as one JSON object; progress goes to standard error.
A wrong result, which is not a matter of speed, ends with exit code 1 and no figures.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import connectors, operate, startup
from bench.checkmate import evaluation as checkmate
from bench.checkmate import report as checkmate_report
from bench.checkmate.queries import QUERIES as CHECKMATE_QUERIES
from bench.common.harness import Figures, Say, WrongResultError
from bench.latency import shuffle as latency
from bench.latency import under_load as latency_load
from bench.nexmark import measure as nexmark
from bench.nexmark import report as nexmark_report
from bench.nexmark.queries import QUERIES as NEXMARK_QUERIES
from bench.paper import evaluation as paper
from bench.paper import report as paper_report
from bench.snapshots import checkpoint, data, recovery
from bench.throughput import columns, cycles, limit, scaling, scaling_report, spark, wordcount
from bench.time import state, windows
from penstock import PenstockError

__all__ = ["main"]


@click.group(no_args_is_help=True, context_settings={"show_default": True})
def main() -> None:
    """Measure the engine on this machine.

    docs/inside/benchmarks.md says how to read the figures.
    """
    # Where it is set each worker compiles the whole package again, which takes as long as all else
    # that it does to start. Nobody's jobs run like that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


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
    """Count words by key, against a program without an engine."""
    _show(as_json, lambda say: wordcount.measure(lines, rounds, interval, folder, say))


@main.command("latency")
@click.option("--rate", default=1_000, help="Records per second, unless a load is given.")
@click.option("--load", help="Share of the highest sustainable rate, such as 0.5; or all.")
@click.option("--loads", is_flag=True, help="The same as --load all.")
@click.option("--shuffles", default=1, help="Keyed shuffles, with a load.")
@click.option("--keys", default=100_003, help="Keys of each, with a load.")
@click.option("--no-snapshots", is_flag=True, help="None are taken.")
@click.option("--sustainable", type=float, help="That rate, if it is known.")
@click.option("--seconds", type=float, help="How long.  [default: 20; 8 with a load, 6 with all]")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@click.option(
    "--results",
    type=click.Path(file_okay=False),
    help="A folder for latency_load.json, with --load all.",
)
@_common
def _latency(
    rate: int,
    seconds: float | None,
    interval: float,
    folder: str | None,
    as_json: bool,
    **of_load: Any,
) -> None:
    """From a source to a sink through one keyed shuffle, or under load."""
    load = "all" if of_load["loads"] else of_load["load"]
    own = None if of_load["no_snapshots"] else interval
    if load is None:
        _show(as_json, partial(latency.measure, rate, seconds or 20.0, own, folder))
        return
    setting = latency_load.Setting(of_load["shuffles"], own, of_load["keys"])
    if load == "all":
        results = of_load["results"]
        _show(
            as_json,
            lambda say: latency_load.measure_all(seconds or 6.0, setting, folder, results, say),
        )
        return
    try:
        share = float(load)
    except ValueError:
        message = f"{load!r} is neither a number nor the word all"
        raise click.BadParameter(message, param_hint="--load") from None
    highest = of_load["sustainable"]
    measure = partial(latency_load.measure, share, setting, seconds or 8.0, highest, folder)
    _show(as_json, measure)


@main.command("limit")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(limit.SHAPES),
    help="Which, and can be given several times; all if left out.",
)
@click.option("--scale", default=1.0, help="How many records, as a multiple.")
@click.option("--rounds", default=2, help="Runs; the limit programs have one more.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _limit(
    shapes: tuple[str, ...],
    scale: float,
    rounds: int,
    interval: float,
    folder: str | None,
    as_json: bool,
) -> None:
    """Run a map chain, a keyed count and a join, against programs without an engine."""
    _show(
        as_json,
        lambda say: limit.measure(shapes or limit.SHAPES, scale, rounds, interval, folder, say),
    )


@main.command("checkpoint")
@click.option("--keys", default=100_000, help="Keys of each worker, all changed each time.")
@click.option("--snapshots", default=100, help="How many, at each load.")
@click.option("--interval", default=0.2, help="Least seconds between two snapshots.")
@_common
def _checkpoint(
    keys: int, snapshots: int, interval: float, folder: str | None, as_json: bool
) -> None:
    """How long snapshots take, and how long records stand still."""
    _show(as_json, partial(checkpoint.measure, keys, snapshots, interval, folder))


@main.command("recovery")
@click.option("--kills", default=5, help="For each size of state.")
@click.option("--rate", default=10_000, help="Records per second.")
@click.option("--interval", default=200.0, help="Milliseconds between two snapshots.")
@click.option("--seed", default=1, help="Of the moments and the victims.")
@click.option("--gigabytes", default=0, help="Also with so much state, a minute more for each.")
@_common
def _recovery(
    kills: int,
    rate: int,
    interval: float,
    seed: int,
    gigabytes: int,
    folder: str | None,
    as_json: bool,
) -> None:
    """SIGKILL of a worker, until every task works again."""
    _show(
        as_json,
        lambda say: recovery.measure(
            kills, rate, interval, seed, gigabytes=gigabytes, folder=folder, say=say
        ),
    )


@main.command("snapshot-data")
@click.option("--keys", default=200_000, help="Keys; 10,000,000 make a snapshot of 850 MB.")
@_common
def _snapshot_data(keys: int, folder: str | None, as_json: bool) -> None:
    """Read, compare and write snapshots as data."""
    _show(as_json, lambda say: data.measure(keys, folder, say))


@main.command("cycles")
@click.option("--records", default=1_000_000, help="Each hops ten times.")
@click.option("--rounds", default=3, help="Of the loop, the loop without snapshots, and ten steps.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _cycles(records: int, rounds: int, interval: float, folder: str | None, as_json: bool) -> None:
    """Run a keyed loop, against the same steps one after the other."""
    _show(as_json, lambda say: cycles.measure(records, rounds, interval, folder, say))


@main.command("windows")
@click.option("--records", default=2_000_000, help="Records; the word count has as many words.")
@click.option("--rounds", default=2, help="Of the word count and all kinds of windows.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _windows(records: int, rounds: int, interval: float, folder: str | None, as_json: bool) -> None:
    """Count records per key in event-time windows, against the word count."""
    _show(as_json, lambda say: windows.measure(records, rounds, interval, folder, say))


@main.command("columns")
@click.option("--records", default=20_000_000, help="Rows; the job by columns has five times more.")
@click.option("--rounds", default=2, help="Of both jobs; medians are quoted.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@_common
def _columns(records: int, rounds: int, interval: float, folder: str | None, as_json: bool) -> None:
    """Sum and count per key over Arrow columns, against the same job by rows."""
    _show(as_json, lambda say: columns.measure(records, rounds, interval, folder, say))


@main.command("state")
@click.option("--records", default=3_000_000, help="Updates of a value; the other jobs have fewer.")
@click.option("--rounds", default=2, help="Of all jobs; medians are quoted.")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@click.option(
    "--backend",
    type=click.Choice(["rocksdb", "sqlite"]),
    default="rocksdb",
    help="The database of large state; sqlite is compared with rocksdb.",
)
@_common
def _state(
    records: int, rounds: int, interval: float, backend: str, folder: str | None, as_json: bool
) -> None:
    """Update values and maps and set timers in process functions, on one worker."""
    _show(as_json, lambda say: state.measure(records, rounds, interval, folder, say, backend))


@main.command("nexmark")
@click.option(
    "--query",
    "queries",
    multiple=True,
    type=click.Choice(list(NEXMARK_QUERIES)),
    help="Which, and can be given several times; all if left out.",
)
@click.option("--events", type=int, help="Events of each run.  [default: ten seconds' worth]")
@click.option("--interval", default=1_000.0, help="Milliseconds between two snapshots.")
@click.option("--quick", is_flag=True, help="Few events, to see that it works.")
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replace the table in this page, which is docs/inside/nexmark.md.",
)
@_common
def _nexmark(
    queries: tuple[str, ...],
    events: int | None,
    interval: float,
    quick: bool,
    page: Path | None,
    folder: str | None,
    as_json: bool,
) -> None:
    """Run the queries of the Nexmark benchmark, each checked against SQL first."""
    checked = nexmark.CHECKED_EVENTS
    if quick:
        events, checked = events or 50_000, 10_000
    correct: list[bool] = []

    def measured(say: Say) -> Figures:
        figures = nexmark.measure(queries, events, checked, interval, folder, say, tell)
        correct.append(figures["correct"])
        if page is not None:
            nexmark_report.replace_table(page, figures)
        return figures

    def tell(line: str) -> None:
        click.echo(line, err=True)

    _show(as_json, measured, nexmark_report.page)
    if not all(correct):
        sys.exit(1)


@main.command("scaling")
@click.option("--record-hops", default=20_000_000, help="Records of a run, times its hops.")
@click.option("--rounds", default=3, help="Of all jobs; medians are quoted.")
@click.option(
    "--results", type=click.Path(file_okay=False), help="Keep the figures here, with a plot."
)
@_common
def _scaling(
    record_hops: int, rounds: int, results: str | None, folder: str | None, as_json: bool
) -> None:
    """Processor time of a record by hops, workers and state size; starts and recovery."""

    def measured(say: Say) -> Figures:
        figures = scaling.measure(record_hops, rounds, say=say, folder=folder)
        if results is not None:
            scaling_report.keep(figures, Path(results))
        return figures

    _show(as_json, measured)


@main.command("startup")
@click.option("--rounds", default=5, help="Starts.")
@click.option("--idle", default=10.0, help="Seconds for which an idle job is watched.")
@_common
def _startup(rounds: int, idle: float, folder: str | None, as_json: bool) -> None:
    """How soon a job runs, and what it costs while it is idle."""
    _show(as_json, lambda say: startup.measure(rounds, idle, folder, say))


@main.command("operate")
@click.option("--rounds", default=5, help="Submissions and changes of the parallelism.")
@click.option("--pairs", default=15, help="Pairs of phases, with and without reading of metrics.")
@click.option("--phase", default=3.0, help="Seconds of a phase.")
@click.option("--state", default=100, help="Megabytes of state of the job that is rescaled.")
@_common
def _operate(
    rounds: int, pairs: int, phase: float, state: int, folder: str | None, as_json: bool
) -> None:
    """How fast the service acts on jobs, and what it costs to look at them."""
    _show(
        as_json,
        lambda say: operate.measure(
            rounds=rounds,
            pairs=pairs,
            phase_seconds=phase,
            state_mb=state,
            folder=folder,
            say=say,
        ),
    )


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


@main.command("connectors")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(connectors.PARTS)),
    help="Only this part, and can be given several times; all if left out.",
)
@click.option("--records", type=int, help="Records of each measurement.  [default: of the part]")
@click.option("--rounds", default=3, help="Runs; the best counts.")
@_common
def _connectors(
    only: tuple[str, ...], records: int | None, rounds: int, folder: str | None, as_json: bool
) -> None:
    """Read and write records with connectors and formats, against plain loops."""
    _show(as_json, lambda say: connectors.measure(only, records, rounds, folder, say))


@main.command("paper")
@click.option("--rounds", default=paper.Plan.rounds, help="Runs of each protocol and interval.")
@click.option("--quick", is_flag=True, help="Two state sizes, and intervals of 0.1, 1 and 3 s.")
@click.option("--interval", "intervals", multiple=True, type=float, help="Only these, in seconds.")
@click.option("--size", "sizes", multiple=True, type=click.Choice(paper.Plan.sizes))
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(paper.PARTS),
    help="Only these; by default all but spark, and with --quick figure6 and model.",
)
@click.option(
    "--results",
    type=click.Path(file_okay=False),
    help="Keep the figures here, with tables and plots; parts measured before stay.",
)
@_common
def _paper(
    rounds: int,
    quick: bool,
    intervals: tuple[float, ...],
    sizes: tuple[str, ...],
    parts: tuple[str, ...],
    results: str | None,
    folder: str | None,
    as_json: bool,
) -> None:
    """Costs of snapshots by protocol, interval and state size: figures 6 and 7 of the paper."""
    plan = paper.Plan.quick() if quick else paper.Plan(rounds=rounds)
    chosen: dict[str, Any] = {"intervals": intervals, "sizes": sizes, "parts": parts}
    plan = replace(plan, **{name: value for name, value in chosen.items() if value})

    def keep(figures: Figures) -> None:
        if results is not None:
            paper_report.keep(figures, Path(results))

    _show(as_json, lambda say: paper.measure(plan, folder, say, keep), paper_report.tables)


@main.command("checkmate")
@click.option(
    "--query",
    "queries",
    multiple=True,
    type=click.Choice(list(CHECKMATE_QUERIES)),
    help="Which, and can be given several times; all if left out.",
)
@click.option("--keys", multiple=True, type=click.Choice(checkmate.KEYS), help="Both if left out.")
@click.option("--rounds", type=int, help="Runs of each kind.  [default: 3]")
@click.option("--interval", default=1.0, help="Seconds between two snapshots.")
@click.option("--quick", is_flag=True, help="Two queries with a hot key, one round: two minutes.")
@click.option(
    "--results",
    type=click.Path(file_okay=False),
    help="Keep the figures here, with tables and a plot; other cases there stay.",
)
@_common
def _checkmate(
    interval: float,
    quick: bool,
    results: str | None,
    folder: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Run the queries of the CheckMate paper with each protocol, and kill a worker."""
    plan = checkmate.CheckmatePlan.quick() if quick else checkmate.CheckmatePlan()
    plan = replace(plan, interval=interval, **{k: v for k, v in chosen.items() if v})

    def keep(figures: Figures) -> None:
        if results is not None:
            checkmate_report.keep(figures, Path(results))

    _show(as_json, lambda say: checkmate.measure(plan, folder, say, keep), checkmate_report.tables)


@main.command("plot")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False),
    default="bench/results",
    help="Where the figures are kept.",
)
def _plot(results: str) -> None:
    """Draw plots and write tables again from the figures that are kept."""
    try:
        written = checkmate_report.draw_again(Path(results))
        written += scaling_report.draw_again(Path(results))
        if not written or (Path(results) / "paper.json").exists():
            written += paper_report.redraw(Path(results))
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from None
    for path in written:
        print(path)


def _show(
    as_json: bool,
    measure: Callable[[Say], Figures],
    page: Callable[[Figures], str] | None = None,
) -> None:
    """Run a benchmark and print its figures. Exits with 1 if its result is wrong.

    Arguments:
        as_json: print one JSON object.
        measure: gives the figures.
        page: makes a page of Markdown of them, for people; by default they are listed.
    """
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
    if page is not None:
        print(page(figures))
        return
    table = Table(show_header=False, box=None)
    for name, value in figures.items():
        if name == "runs":
            continue
        shown = f"{value:,}" if type(value) is int else str(value)
        table.add_row(name, shown)
    Console().print(table)
    if "runs" in figures:
        _show_runs(figures["runs"])


def _show_runs(runs: list[Figures]) -> None:
    """Return a table with a line for each run."""
    names = ("load", "shuffles", "snapshots", "p50_ms", "p99_ms", "max_ms", "due_p99_ms")
    table = Table(*names, box=None)
    for one in runs:
        table.add_row(*(str(one[name]) for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
