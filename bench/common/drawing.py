"""What all plots share: the look of protocols, panels, and files. It needs matplotlib.

The background is white, so that a plot can be read on a dark page, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PROTOCOLS", "new_figure", "save"]

#: Name, colour (told apart by the colour-blind, too) and marker of each protocol.
PROTOCOLS = {
    "abs": ("ABS", "#0072B2", "o"),
    "synchronous": ("synchronous", "#D55E00", "s"),
    "chandy_lamport": ("unaligned", "#009E73", "^"),
    "at_least_once": ("at least once", "#CC79A7", "v"),
    "none": ("no snapshots", "#555555", "D"),
}


def new_figure(panels: int, sharey: bool = False, height: float = 3.8) -> Figure:
    """Return a figure with panels side by side.

    Arguments:
        panels: their number.
        sharey: whether they have one vertical axis.
        height: the height in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4.6, 15 / panels) * panels + 0.6, height), layout="constrained")
    figure.subplots(1, panels, sharey=sharey)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PNG, and return the paths of both files."""
    import matplotlib

    # Text stays text, and the same result gives the same bytes.
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150, metadata={"Software": None})
    return paths
