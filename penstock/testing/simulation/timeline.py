"""Draw a run as a page of HTML: the lives of processes, the faults, and the trace."""

from __future__ import annotations

from html import escape

from penstock.testing.simulation.simulated_job import RunResult

_WIDTH, _LEFT, _ROW = 960, 130, 26
_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px system-ui, sans-serif; margin: 2em; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.life { fill: #4a90d9; }
.killed { stroke: #d64545; stroke-width: 3; }
.snapshot { stroke: #3aa06b; stroke-width: 2; }
.grid { stroke: currentColor; opacity: 0.15; }
pre { line-height: 1.4; }
"""


def timeline(result: RunResult, title: str) -> str:
    """Return a page that shows a run.

    Arguments:
        result: the run.
        title: the heading.
    """
    end = max((life.end for life in result.lives), default=0.0) or 1.0
    names = list(dict.fromkeys(life.name for life in result.lives))
    rows = {name: index for index, name in enumerate(names)}

    def x(seconds: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 20) * seconds / end, 1)

    shapes = []
    for tenth in range(11):
        at, place = end * tenth / 10, x(end * tenth / 10)
        shapes.append(
            f'<line class="grid" x1="{place}" y1="0" x2="{place}" y2="{_ROW * len(rows)}"/>'
        )
        if tenth % 2 == 0:
            low = _ROW * len(rows) + 16
            shapes.append(f'<text x="{place - 12}" y="{low}">{1000 * at:.0f} ms</text>')
    for name, row in rows.items():
        shapes.append(f'<text x="0" y="{_ROW * row + 17}">{escape(name)}</text>')
    for life in result.lives:
        top, left, right = _ROW * rows[life.name] + 6, x(life.begin), x(life.end)
        shapes.append(
            f'<rect class="life" x="{left}" y="{top}" width="{max(1.0, right - left):.1f}" '
            f'height="14" rx="3"><title>{escape(life.name)}: {1000 * life.begin:.1f} to '
            f"{1000 * life.end:.1f} ms, {escape(life.how)}</title></rect>"
        )
        if life.killed:
            shapes += [
                f'<line class="killed" x1="{right - 6}" y1="{a}" x2="{right + 6}" y2="{b}"/>'
                for a, b in ((top, top + 14), (top + 14, top))
            ]
    for number, seconds in result.snapshots:
        place = x(seconds)
        shapes.append(
            f'<line class="snapshot" x1="{place}" y1="2" x2="{place}" y2="{_ROW - 2}">'
            f"<title>snapshot {number}: {1000 * seconds:.1f} ms</title></line>"
        )
    faults = "".join(f"<li>{escape(cause)}</li>" for cause in result.schedule.causes)
    height = _ROW * len(rows) + 24
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>Blue: a process lives. Red cross: it is killed. Green: a snapshot is complete.</p>"
        f"<svg width='{_WIDTH}' height='{height}' viewBox='0 0 {_WIDTH} {height}'>"
        f"{''.join(shapes)}</svg><h2>Faults</h2><ul>{faults or '<li>none</li>'}</ul>"
        f"<h2>Trace</h2><pre>{escape(chr(10).join(result.trace))}</pre></body></html>\n"
    )
