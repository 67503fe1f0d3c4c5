"""Results of `checkmate` that are kept in one folder: figures, tables and a plot.

Cases that are measured later replace those of their name and leave the others. This module measures
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.checkmate.queries import QUERIES
from bench.common.harness import Figures

__all__ = ["draw_again", "keep", "tables"]

LABELS = {
    "abs": "ABS",
    "chandy_lamport": "unaligned",
    "synchronous": "synchronous",
    "at_least_once": "at least once",
}
#: The same with the runs without snapshots, which are also the control.
KINDS = {"none": "no snapshots", **LABELS}
#: Figures of runs with a kill: key, heading, and format.
RECOVERY = (
    ("p50_ms", "p50 (ms)", ".1f"),
    ("p99_ms", "p99 (ms)", ".0f"),
    ("snapshot_ms", "snapshot (ms)", ".0f"),
    ("log_records", "records in logs", ",.0f"),
    ("seconds_until_detected", "until detected (s)", ".2f"),
    ("seconds_without_output", "without output (s)", ".2f"),
    ("seconds_until_caught_up", "until caught up (s)", ".1f"),
    ("records_again", "records again", ",.0f"),
    ("seconds_again", "as seconds of input", ".2f"),
    ("lost", "lost", ".0f"),
    ("doubled", "doubled", ",.0f"),
)


def keep(figures: Figures, folder: Path) -> list[Path]:
    """Add figures to those in a folder, and draw everything again.

    Arguments:
        figures: the figures of some cases, as `evaluation.measure` returns them.
        folder: the folder, which is created if it does not exist.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkmate.json"
    kept: Figures = json.loads(path.read_text()) if path.exists() else {}
    merged = {**kept, **figures}
    for part in ("cases", "measured"):
        merged[part] = _in_order({**kept.get(part, {}), **figures[part]})
    path.write_text(json.dumps(merged, indent=1) + "\n")
    return [path, *draw_again(folder)]


def _in_order(cases: Figures) -> Figures:
    """Return the cases in the order of the queries, those without a hot key first."""
    queries = list(QUERIES)

    def place(name: str) -> tuple[int, str]:
        query, keys = name.split()
        return queries.index(query), "" if keys == "uniform" else keys

    return {name: cases[name] for name in sorted(cases, key=place)}


def draw_again(folder: Path) -> list[Path]:
    """Draw the plot and write the tables of the results in a folder, if there are any.

    Returns:
        The files that were written.
    """
    from bench.checkmate import plots
    from bench.common.drawing import save

    path = folder / "checkmate.json"
    if not path.exists():
        return []
    figures = json.loads(path.read_text())
    page = folder / "checkmate.md"
    page.write_text(tables(figures))
    return [page, *save(plots.plot_cases(figures["cases"]), folder, "checkmate")]


def tables(figures: Figures) -> str:
    """Return all figures as a page of Markdown.

    Arguments:
        figures: what is in `checkmate.json`.
    """
    parts = ["# Results of `python -m bench checkmate`", _measured(figures)]
    parts += ["## Throughput (records/s)", _throughput(figures["cases"])]
    parts += ["## Added processor time at full speed, and that of the control"]
    parts += [_processor_time(figures["cases"])]
    parts += ["## Snapshots at full speed: median time (ms), and records in logs"]
    parts += [_full_speed(figures["cases"])]
    for name, case in figures["cases"].items():
        parts += [f"## {name}: a worker is killed at {case['rate']:,} records/s", _recovery(case)]
    return "\n\n".join(parts) + "\n"


def _measured(figures: Figures) -> str:
    rows = [
        (
            name,
            told["date"],
            f"{told['cores']} × {told['cpu']}",
            f"Python {told['python']}, penstock {told['versions']['penstock']}",
            told["rounds"],
            "{} to {}".format(*figures["cases"][name]["load_average"]),
        )
        for name, told in figures["measured"].items()
    ]
    heads = ("case", "measured", "processor", "versions", "rounds", "load average")
    return _table(heads, rows)


def _throughput(cases: Figures) -> str:
    rows = [
        (name, *(f"{case['throughput'][of]:,}" if of in case["throughput"] else "" for of in KINDS))
        for name, case in cases.items()
    ]
    return _table(("case", *KINDS.values()), rows)


def _processor_time(cases: Figures) -> str:
    rows = [(name, *(_overhead(case, of) for of in KINDS)) for name, case in cases.items()]
    return _table(("case", *KINDS.values()), rows)


def _overhead(case: Figures, protocol: str) -> str:
    found = case["added_processor_time"].get(protocol)
    if found is None:
        return ""
    low, high = (100 * end for end in found["band"])
    return f"{100 * found['overhead']:.0f} % ({low:.0f} to {high:.0f})"


def _full_speed(cases: Figures) -> str:
    rows = [
        (
            name,
            *(
                f"{found['snapshot_ms']:.0f}, {found['log_records']:,.0f}"
                if "snapshot_ms" in (found := case["full_speed"].get(protocol, {}))
                else ""
                for protocol in LABELS
            ),
        )
        for name, case in cases.items()
    ]
    return _table(("case", *LABELS.values()), rows)


def _recovery(case: Figures) -> str:
    rows = [
        (
            LABELS[protocol],
            *(
                format(found[key], style) if found.get(key) is not None else ""
                for key, _, style in RECOVERY
            ),
        )
        for protocol, found in case["recovery"].items()
    ]
    return _table(("protocol", *(heading for _, heading, _ in RECOVERY)), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
