"""Results that are kept: `paper.json`, tables (`paper.md`, `latency.md`) and plots, in one folder.

Parts that are measured later (`--part`) replace those of their name and leave the others; each has
the machine, the versions and the date of its own. This module measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.harness import Figures

__all__ = ["keep", "redraw", "tables"]

LABELS = {"abs": "ABS", "synchronous": "synchronous", "chandy_lamport": "Chandy-Lamport"}
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
    from bench import plots  # it needs matplotlib, which measuring does not

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
    if "details" in paper:
        parts += [
            "## Figure 6: overhead by interval",
            f"{paper['keys_changed_per_second']:,} of {paper['keys']:,} keys changed in one second "
            "(counted).",
            *_protocols(paper),
        ]
    if "figure7" in paper:
        parts += ["## Figure 7: the same work at several parallelisms", _scaling(paper["figure7"])]
    if "spark" in paper:
        spark = paper["spark"]
        title = f"## Figure 7 on Spark {spark['version']}, `{spark['master']}`"
        parts += [title, _scaling(spark)]
    if "cyclic" in paper:
        loop = paper["cyclic"]
        title = f"## The cyclic graph: {loop['hops']} rounds a record, {loop['keys']:,} keys"
        logs = ["What the logs of back-edges hold:", _details(loop, LOGS)]
        parts += [title, *_protocols(loop), *logs]
    return "\n\n".join(parts) + "\n"


def latency_table(latency: Figures) -> str:
    """The runs of `latency --loads` as a page of Markdown.

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
        "(bench/NOTES.md).\n\n"
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
    """The tables of figure 6, for either graph."""
    names = [name for name in LABELS if f"{name}_overhead" in results]
    sections = []
    for key, what in (("overhead", "Run time"), ("cpu_overhead", "Processor time")):
        rows = [
            (f"{interval} s", *(_with_band(results, n, key, interval) for n in (*names, "none")))
            for interval in results["details"]
        ]
        sections += [
            f"{what} more than without snapshots, median and 95 % interval. The control is runs "
            "without snapshots, compared in the same way; void figures had too few snapshots.",
            _table(("interval", *(LABELS[name] for name in names), "control"), rows),
        ]
    shares = [
        (f"{interval} s", *(results[f"{n}_snapshots_completed_share"][interval] for n in names))
        for interval in results["details"]
    ]
    sections += [
        "Share of the snapshots asked for that completed:",
        _table(("interval", *(LABELS[name] for name in names)), shares),
        "Medians over all runs:",
        _details(results, DETAILS),
    ]
    return sections


def _with_band(results: Figures, name: str, key: str, interval: str) -> str:
    if interval not in results.get(f"{name}_{key}", {}):
        return ""  # too few rounds for a control
    middle = results[f"{name}_{key}"][interval]
    if middle is None:
        return "void"
    low, high = results[f"{name}_{key}_95"][interval]
    return f"{100 * middle:.1f} % ({100 * low:.1f} … {100 * high:.1f})"


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
