"""The table of the Nexmark benchmark, with the published figures of Flink beside ours."""

from __future__ import annotations

from bench.common.harness import Figures

__all__ = ["FLINK", "page"]

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
_HEADER = (
    "| query | events/s and core | Flink | to q0 | events/s | cores | state MB "
    "| snapshot p99 ms | snapshots |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def page(figures: Figures) -> str:
    """Return a table of Markdown with a line for each query, and a line about the machine."""
    queries: dict[str, Figures] = figures["queries"]
    first = queries.get("q0", {}).get("events_per_second_per_core")
    lines = [_line(name, of, first) for name, of in queries.items()]
    machine = (
        f"{figures['workers']} workers, {figures['cores']} cores, Python {figures['python']}, "
        f"load average {figures['load_average']}, {figures['stolen_percent']} % stolen; "
        f"each query checked on {figures['checked_events']:,} events. The generator alone: "
        f"{figures['generator_events_per_second']:,} events/s and core."
    )
    return "\n".join([_HEADER, *lines, "", machine])


def _line(name: str, of: Figures, first: int | None) -> str:
    title = f"{name} {of['title']}"
    if not of["correct"]:
        return f"| {title} | wrong: {of['wrong']} |"
    per_core = of["events_per_second_per_core"]
    p99 = of["snapshot_ms_p99"]
    cells = [
        title,
        f"{per_core / 1000:,.0f}k",
        f"{FLINK[name]}k" if name in FLINK else "",
        f"{per_core / first:.2f}" if first else "",
        f"{of['events_per_second'] / 1000:,.0f}k",
        f"{of['cores']:.2f}",
        f"{of['state_bytes'] / 1e6:,.1f}",
        "" if p99 is None else f"{p99:,.0f}",
        str(of["snapshots_completed"]),
    ]
    return f"| {' | '.join(cells)} |"
