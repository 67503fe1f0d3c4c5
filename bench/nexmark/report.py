"""The table of the Nexmark benchmark, with the published figures of Flink beside ours."""

from __future__ import annotations

import re
from pathlib import Path

from bench.common.harness import Figures

__all__ = ["AIMS", "FLINK", "page", "replace_table"]

#: Thousand events per second and core of Flink 1.13, as the benchmark's authors published them.
FLINK = {
    "q0": 155,
    "q1": 158,
    "q2": 175,
    "q3": 152,
    "q4": 34,
    "q5": 22,
    "q7": 12,
    "q8": 146,
    "q9": 14,
    "q10": 58,
    "q11": 40,
    "q12": 76,
    "q13": 131,
    "q14": 161,
    "q15": 72,
    "q16": 19,
    "q17": 117,
    "q18": 54,
    "q19": 44,
    "q20": 19,
    "q21": 98,
    "q22": 130,
}
#: What is aimed at, in the same unit.
AIMS = {
    **dict.fromkeys(("q0", "q1", "q2"), 150),
    **dict.fromkeys(("q3", "q8"), 60),
    **dict.fromkeys(("q4", "q5", "q7", "q9", "q11", "q18", "q20"), 25),
}
_HEADER = (
    "| query | thousand events/s and core | aim | Flink | ratio to q0 | thousand events/s | cores "
    "| state in MB | snapshot p99 in ms | snapshots |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
_BEGIN, _END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def page(figures: Figures) -> str:
    """Return a table of Markdown with a line for each query, and a line about the machine."""
    queries: dict[str, Figures] = figures["queries"]
    first = queries.get("q0", {}).get("events_per_second_per_core")
    lines = [_line(name, of, first) for name, of in queries.items()]
    counts = [of["events"] for of in queries.values() if of["correct"]]
    events = f"{min(counts):,} to {max(counts):,} events; " if counts else ""
    machine = (
        f"{figures['workers']} workers on {figures['cores']} cores, Python {figures['python']}, "
        f"load average {figures['load_average']}, {figures['stolen_percent']} % stolen; {events}"
        f"each query checked on {figures['checked_events']:,} events. The generator alone makes "
        f"{figures['generator_events_per_second']:,} events a second on one core."
    )
    return "\n".join([_HEADER, *lines, "", machine])


def replace_table(path: Path, figures: Figures) -> None:
    """Replace the table in a page of the documentation by that of some figures."""
    text = path.read_text()
    table = f"{_BEGIN}\n{page(figures)}\n\n{_END}"
    found = re.sub(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", lambda _: table, text, flags=re.S)
    if table not in found:
        raise ValueError(f"{path} has no lines {_BEGIN.strip()} and {_END.strip()}")
    path.write_text(found)


def _line(name: str, of: Figures, first: int | None) -> str:
    title = f"{name} {of['title']}"
    if not of["correct"]:
        return f"| {title} | wrong: {of['wrong']} |"
    per_core = of["events_per_second_per_core"]
    p99 = of["snapshot_ms_p99"]
    cells = [
        title,
        f"{per_core / 1000:,.0f}",
        str(AIMS.get(name, "")),
        str(FLINK.get(name, "")),
        f"{per_core / first:.2f}" if first else "",
        f"{of['events_per_second'] / 1000:,.0f}",
        f"{of['cores']:.2f}",
        f"{of['state_bytes'] / 1e6:,.1f}",
        "" if p99 is None else f"{p99:,.0f}",
        str(of["snapshots_completed"]),
    ]
    return f"| {' | '.join(cells)} |"
