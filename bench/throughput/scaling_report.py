"""Keeps the figures of `scaling`, and draws cost against hops, workers and state size.

This module measures nothing. Drawing needs matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.drawing import new_figure, save
from bench.common.harness import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_again", "keep", "plot_costs"]

#: The file of the figures.
FILE = "scaling.json"
QUIET, BUSY = "#0072B2", "#D55E00"


def keep(figures: Figures, folder: Path) -> list[Path]:
    """Write figures to a folder, which is made if it is not there, and draw them.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return [path, *draw_again(folder)]


def draw_again(folder: Path) -> list[Path]:
    """Draw the plot of the figures in a folder, if there are any, and return its files."""
    path = folder / FILE
    if not path.exists():
        return []
    return save(plot_costs(json.loads(path.read_text())), folder, "scaling")


def plot_costs(figures: Figures) -> Figure:
    """Draw processor time against hops, workers and state size.

    Arguments:
        figures: what `scaling.measure` returns.
    """
    figure = new_figure(3)
    hops, widths, sizes = figure.axes
    _draw(hops, figures, "cpu_us_per_hop.", QUIET, "two workers alone")
    _draw(hops, figures, "cpu_us_per_hop_busy.", BUSY, "beside two busy processes")
    hops.set_xlabel("keyed hops")
    hops.set_ylabel("processor time per record and hop (µs)")
    hops.legend(frameon=False)
    _draw(widths, figures, "cpu_us_per_record.p", QUIET)
    widths.set_xlabel("workers")
    widths.set_ylabel("processor time per record, two hops (µs)")
    _draw(sizes, figures, "cpu_us_per_update.", QUIET)
    sizes.axvline(figures["memory_mb"], color="#AAAAAA", linestyle=":", label="memory for state")
    sizes.set_xlabel("state in values of 1 kB (MB)")
    sizes.set_ylabel("processor time per update (µs)")
    sizes.legend(frameon=False)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    return figure


def _draw(axes: Axes, figures: Figures, name: str, colour: str, label: str | None = None) -> None:
    """Draw the figures whose names begin in this way against the number at the end."""
    points = sorted(
        (float(key.removeprefix(name)), value)
        for key, value in figures.items()
        if key.startswith(name)
    )
    axes.plot(*zip(*points, strict=True), "o-", c=colour, label=label)
    axes.set_xscale("log", base=2)
    places = [place for place, _ in points]
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()
