"""Results that are kept: `paper.json`, tables (`paper.md`, `latency.md`) and plots, in one folder.

Parts that are measured later (`--part`) replace those of their name and leave the others; each has
the machine, the versions and the date of its own. This module measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.common.harness import Figures

__all__ = ["keep", "redraw", "tables"]

LABELS = {"abs": "ABS", "synchronous": "synchronous", "chandy_lamport": "unaligned"}
#: Figures of single snapshots: key, heading, divided by, format.
DETAILS = (
    ("snapshot_bytes", "MB per snapshot", 1e6, ".2f"),
    ("snapshot_ms", "snapshot (ms)", 1, ".0f"),
    ("write_ms", "slowest task's writing (ms)", 1, ".0f"),
    ("aligned_ms", "longest alignment (ms)", 1, ".1f"),
    ("channel_aligned_ms", "median channel blocked (ms)", 1, ".1f"),
    ("barrier_travel_ms", "barrier travel (ms)", 1, ".0f"),
    ("longest_pause_ms", "longest pause (ms)", 1, ".0f"),
)
LOGS = (
    ("log_records", "records in logs", 1, ",.0f"),
    ("log_records_max", "most", 1, ",.0f"),
    ("log_bytes", "kB in logs", 1e3, ",.1f"),
    ("log_bytes_max", "most", 1e3, ",.1f"),
)


def keep(figures: Figures, folder: Path) -> list[Path]:
    """Add figures to those in a folder, and draw everything anew.

    Arguments:
        figures: what `paper.measure` gave, of all parts or of one.
        folder: made if it is not there.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "paper.json"
    before: Figures = json.loads(path.read_text()) if path.exists() else {}
    measured = {**before.get("measured", {}), **figures["measured"]}
    path.write_text(json.dumps({**before, **figures, "measured": measured}, indent=1) + "\n")
    return [path, *redraw(folder)]


def redraw(folder: Path) -> list[Path]:
    """Draw the plots, and write the tables, of the results in a folder.

    Arguments:
        folder: with `paper.json`, `latency_load.json`, or both.

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: if there are no results.
    """
    from bench.paper import plots

    paper, latency = (
        json.loads((folder / name).read_text()) if (folder / name).exists() else None
        for name in ("paper.json", "latency_load.json")
    )
    if paper is None and latency is None:
        raise FileNotFoundError(
            f"no results in {folder}: measure with `python -m bench paper --results {folder}` first"
        )
    written = plots.draw(paper, latency, folder)
    if paper is not None:
        path = folder / "paper.md"
        path.write_text(tables(paper))
        written.append(path)
    if latency is not None:
        path = folder / "latency.md"
        path.write_text(latency_table(latency))
        written.append(path)
    return written


def tables(paper: Figures) -> str:
    """All figures as a page of Markdown.

    Arguments:
        paper: what is in `paper.json`.
    """
    parts = ["# Results of `python -m bench paper`", _measured(paper["measured"])]
    for of in paper.get("by_state_size", {}).values():
        parts += [f"## Figure 6, {of['keys']:,} keys in each of three aggregates", *_protocols(of)]
    for of in paper.get("paced", {}).values():
        title = f"## Paced: {of['rate']:,} records/s, {of['keys']:,} keys in each aggregate"
        parts += [title, *_protocols(of), "Added latency at the 99th percentile:", _added(of)]
    if "cyclic" in paper:
        loop = paper["cyclic"]
        title = f"## The cyclic graph: {loop['hops']} rounds a record, {loop['keys']:,} keys"
        logs = ["Contents of the logs of back-edges:", _details(loop, LOGS)]
        parts += [title, *_protocols(loop), *logs]
    if "model" in paper:
        parts += ["## The cost model", *_model(paper["model"])]
    if "figure7" in paper:
        parts += ["## Figure 7: the same work at several parallelisms", _scaling(paper["figure7"])]
    if "spark" in paper:
        spark = paper["spark"]
        title = f"## Figure 7 on Spark {spark['version']}, `{spark['master']}`"
        parts += [title, _scaling(spark)]
    return "\n\n".join(parts) + "\n"


def latency_table(latency: Figures) -> str:
    """Return the runs of `latency --loads` as a page of Markdown.

    Arguments:
        latency: what is in `latency_load.json`.
    """
    rows = [
        (
            f"{run['load']:.0%}".replace("%", " %"),
            run["shuffles"],
            "yes" if run["snapshots"] else "no",
            *(
                # Without one steady moment there is no figure of any.
                f"{run[name]:.2f}" if name in run else "none"
                for name in ("p50_ms", "p99_ms", "steady_p99_ms", "max_ms")
            ),
            f"{run['slow_percent']:.0f} %",
        )
        for run in latency["runs"]
    ]
    values = ("median (ms)", "p99 (ms)", "p99, steady (ms)", "longest (ms)", "slow moments")
    when = f"Measured {latency['date']}. " if "date" in latency else ""
    what = (
        f"{when}*Steady* leaves out what was under way while the machine was slow by itself "
        "(docs/inside/benchmarks.md).\n\n"
    )
    table = _table(("load", "shuffles", "snapshots", *values), rows)
    return f"# Results of `python -m bench latency --loads`\n\n{what}{table}\n"


def _measured(measured: dict[str, Figures]) -> str:
    rows = [
        (
            part,
            told["date"],
            f"{told['cores']} × {told['cpu']}",
            f"{told['system']} {told['kernel']}",
            f"Python {told['python']}, "
            + ", ".join(f"{name} {version}" for name, version in told["versions"].items()),
            told["rounds"],
            told["load_average"],
        )
        for part, told in measured.items()
    ]
    heads = ("part", "measured", "processor", "system", "versions", "rounds", "load at the end")
    return _table(heads, rows)


def _protocols(results: Figures) -> list[str]:
    """Return the tables of figure 6, for any graph."""
    names = [name for name in LABELS if f"{name}_overhead" in results]
    heads = ("interval", *(LABELS[name] for name in names))
    sections = []
    kinds = (("overhead", "control", "Processor"), ("run_time_overhead", "control_run_time", "Run"))
    for key, control, what in kinds:
        rows = [
            (
                f"{interval} s",
                *(
                    _with_band(results[f"{n}_{key}"], results[f"{n}_{key}_95"], interval)
                    for n in names
                ),
                _control(results[control][interval]),
            )
            for interval in results["details"]
        ]
        sections += [
            f"{what} time added by snapshots, median and 95 % interval. The control is runs "
            "without snapshots, compared in the same way:",
            _table((*heads, "control"), rows),
        ]
    shares = [
        (f"{interval} s", *(results[f"{n}_snapshots_completed_share"][interval] for n in names))
        for interval in results["details"]
    ]
    return [
        *sections,
        "Share of the snapshots asked for that completed:",
        _table(heads, shares),
        "Medians over all runs:",
        _details(results, DETAILS),
    ]


def _with_band(middles: Figures, bands: Figures, interval: str) -> str:
    low, high = bands[interval]
    return f"{100 * middles[interval]:.1f} % ({100 * low:.1f} … {100 * high:.1f})"


def _control(of: Figures | None) -> str:
    """Return the control; it is empty if there were too few rounds."""
    return "" if of is None else _with_band({"": of["overhead"]}, {"": of["band"]}, "")


def _added(results: Figures) -> str:
    names = [name for name in LABELS if f"{name}_added_p99_ms" in results]
    rows = [
        (
            f"{interval} s",
            *(f"{results[f'{name}_added_p99_ms'][interval]:.1f}" for name in names),
            f"{of['none']['p99_ms']:.1f}",
        )
        for interval, of in results["details"].items()
    ]
    labels = (f"{LABELS[name]} (ms)" for name in names)
    return _table(("interval", *labels, "p99 without snapshots (ms)"), rows)


def _model(model: Figures) -> list[str]:
    """Return the tables of the model: its costs, and how well it predicts."""
    costs = [
        (
            LABELS[name],
            *(f"{of[key]:.2f}" for key in ("fixed_ms", "task_ms", "key_us", "record_us")),
        )
        for name, of in model["costs"].items()
    ]
    heads = (
        "protocol",
        "a snapshot (ms)",
        "a task (ms)",
        "a changed key (µs)",
        "a record in flight (µs)",
    )
    checks = [
        (
            graph,
            LABELS[name],
            f"{interval} s",
            f"{100 * of['predicted']:.1f} %",
            _with_band({"": of["measured"]}, {"": of["band"]}, ""),
        )
        for graph, protocols in model["checks"].items()
        for name, intervals in protocols.items()
        if name in LABELS
        for interval, of in intervals.items()
    ]
    return [
        "Processor time:",
        _table(heads, costs),
        "Added processor time at full load, predicted and measured:",
        _table(("job", "protocol", "interval", "predicted", "measured"), checks),
    ]


def _details(results: Figures, columns: Sequence[tuple[str, str, float, str]]) -> str:
    rows = []
    for interval, by_protocol in results["details"].items():
        for name, of in by_protocol.items():
            cells = [_cell(of.get(key), by, form) for key, _, by, form in columns]
            if any(cells):
                rows.append((f"{interval} s", LABELS.get(name, "no snapshots"), *cells))
    return _table(("interval", "protocol", *(heading for _, heading, _, _ in columns)), rows)


def _cell(value: float | None, by: float, form: str) -> str:
    return "" if value is None else format(value / by, form)


def _scaling(results: Figures) -> str:
    rows = []
    for parallelism, point in results["points"].items():
        cells = []
        for name in ("none", "abs"):
            low, high = point[name]["seconds_95"]
            cells.append(f"{point[name]['seconds']:.2f} ({low:.2f} … {high:.2f})")
        rate = results["records"] / point["abs"]["seconds"]
        rows.append((parallelism, *cells, f"{rate:,.0f}", f"{point['snapshots_completed']:g}"))
    heads = (
        "parallelism",
        "no snapshots (s)",
        f"ABS, every {results['interval']:g} s (s)",
        "records/s with ABS",
        "snapshots per run",
    )
    return f"{results['records']:,} records:\n\n" + _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
