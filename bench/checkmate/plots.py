"""Draws the figures of `checkmate`. It measures nothing, and needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.common.drawing import PROTOCOLS, new_figure
from bench.common.harness import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_cases"]

#: Figures of runs with a kill, and the labels of their axes.
PANELS = {
    "snapshot_ms": "time of a snapshot (ms)",
    "seconds_without_output": "without output after a kill (s)",
    "seconds_until_caught_up": "until the lag is worked off (s)",
    "seconds_again": "read again (seconds of input)",
}
#: The markers of one case are so far from each other.
APART = 0.16


def plot_cases(cases: Figures) -> Figure:
    """Plot what snapshots and a kill cost, with a marker for each case and protocol.

    A marker is the median. Its line reaches from the lowest to the highest run.

    Arguments:
        cases: `cases`, as `evaluation.measure` returns them.
    """
    figure = new_figure(1 + len(PANELS), height=1.2 + 0.75 * len(cases))
    _processor_time(figure.axes[0], cases)
    for axes, (key, label) in zip(figure.axes[1:], PANELS.items(), strict=True):
        axes.set_xlabel(label)
        for row, case in enumerate(cases.values()):
            for place, (protocol, found) in enumerate(_in_order(case["recovery"])):
                values = [run[key] for run in found["all"] if run.get(key) is not None]
                if values:
                    _mark(axes, protocol, row, place, found[key], min(values), max(values))
        axes.set_xlim(left=0)
    for axes in figure.axes:
        axes.set_yticks(range(len(cases)), cases if axes is figure.axes[0] else [""] * len(cases))
        axes.set_ylim(len(cases) - 0.4, -0.6)
    first = next(iter(cases.values()))
    for protocol, _ in _in_order(first["recovery"]):
        label, colour, marker = PROTOCOLS[protocol]
        figure.axes[0].plot([], [], marker, c=colour, label=label)
    figure.legend(loc="outside upper center", ncols=len(PROTOCOLS), frameon=False)
    return figure


def _processor_time(axes, cases: Figures) -> None:
    axes.set_xlabel("added processor time at full speed (%)")
    axes.axvline(0, color=PROTOCOLS["none"][1], linestyle=":")
    for row, case in enumerate(cases.values()):
        for place, (protocol, found) in enumerate(_in_order(case["added_processor_time"])):
            low, high = (100 * end for end in found["band"])
            _mark(axes, protocol, row, place, 100 * found["overhead"], low, high)


def _in_order(found: Figures) -> list[tuple[str, Figures]]:
    """Return the figures of the protocols that take snapshots, in the order of the legend."""
    return [(name, found[name]) for name in PROTOCOLS if name in found and name != "none"]


def _mark(
    axes, protocol: str, row: int, place: int, middle: float, low: float, high: float
) -> None:
    _, colour, marker = PROTOCOLS[protocol]
    height = row + (place - 1.5) * APART
    axes.plot([low, high], [height, height], "-", c=colour, alpha=0.5, zorder=1)
    axes.plot([middle], [height], marker, c=colour, markersize=5)
