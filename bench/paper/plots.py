"""Draws the figures of `paper` and of `latency --loads` from their results, as SVG and PNG.

The axes of figures 6 and 7 are those of the paper: cost against the snapshot interval, and run
time against parallelism. A marker is hollow where fewer than nine tenths of the snapshots that
the interval asks for completed. This module measures nothing, and needs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.drawing import PROTOCOLS, new_figure, save
from bench.common.harness import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw",
    "plot_cyclic",
    "plot_figure6",
    "plot_figure7",
    "plot_latency",
    "plot_model",
    "plot_paced",
]

#: Below this share of completed snapshots a marker is hollow.
ENOUGH = 0.9
LATENCIES = {
    "p50_ms": "median",
    "p99_ms": "p99",
    "steady_p99_ms": "steady p99",
    "max_ms": "longest",
}


def draw(paper: Figures | None, latency: Figures | None, folder: Path) -> list[Path]:
    """Draw everything that there is a result for.

    Arguments:
        paper: what `bench paper --json` prints; None if there is none.
        latency: what `bench latency --loads --json` prints; None if there is none.
        folder: where the files are put.

    Returns:
        The files that were written.
    """
    figures: dict[str, Figure] = {}
    if paper is not None:
        if "by_state_size" in paper:
            figures["figure6"] = plot_figure6(paper["by_state_size"])
        if "paced" in paper:
            figures["paced"] = plot_paced(paper["paced"])
        if "figure7" in paper or "spark" in paper:
            figures["figure7"] = plot_figure7(paper)
        if "cyclic" in paper:
            figures["cyclic"] = plot_cyclic(paper["cyclic"])
        if "model" in paper:
            figures["model"] = plot_model(paper["model"])
    if latency is not None:
        figures["latency"] = plot_latency(latency)
    return [path for name, figure in figures.items() for path in save(figure, folder, name)]


def plot_figure6(results: Figures) -> Figure:
    """Plot figure 6: added processor time against the interval, a panel for each state size.

    Arguments:
        results: `by_state_size`, as `paper` has it.
    """
    figure = new_figure(len(results), sharey=True)
    for axes, of in zip(figure.axes, results.values(), strict=True):
        _overheads(axes, of)
        axes.set_title(f"3 × {of['keys']:,} keys")
    figure.axes[0].set_ylabel("added processor time (%)")
    figure.axes[0].legend(frameon=False)
    return figure


def plot_paced(results: Figures) -> Figure:
    """Plot added processor time and added p99 latency at a share of the sustained rate.

    Arguments:
        results: `paced`, as `paper` has it.
    """
    figure = new_figure(2 * len(results))
    for number, of in enumerate(results.values()):
        costs, waits = figure.axes[2 * number : 2 * number + 2]
        _overheads(costs, of)
        costs.set_ylabel("added processor time (%)")
        for name in _protocols(of):
            label, colour, marker = PROTOCOLS[name]
            points = sorted(
                (float(key), value) for key, value in of[f"{name}_added_p99_ms"].items()
            )
            waits.plot(*zip(*points, strict=True), f"{marker}-", c=colour, label=label)
        waits.axhline(0, color=PROTOCOLS["none"][1], linestyle=":")
        _log_ticks(waits, sorted(map(float, of["details"])), "snapshot interval (s)")
        waits.set_ylabel("added p99 latency (ms)")
        for axes in (costs, waits):
            axes.set_title(f"3 × {of['keys']:,} keys")
    figure.axes[0].legend(frameon=False)
    return figure


def _protocols(results: Figures) -> list[str]:
    return [name for name in PROTOCOLS if f"{name}_overhead" in results]


def _overheads(axes: Axes, results: Figures) -> None:
    """Plot added processor time in percent, with its bands and that of the control."""
    ticks = sorted(map(float, results["details"]))
    for name in _protocols(results):
        label, colour, marker = PROTOCOLS[name]
        keys = sorted(results[f"{name}_overhead"], key=float)
        x = [float(key) for key in keys]
        y = [100 * results[f"{name}_overhead"][key] for key in keys]
        shares = [results[f"{name}_snapshots_completed_share"][key] for key in keys]
        axes.plot(x, y, "-", c=colour)
        axes.plot([], [], f"{marker}-", c=colour, label=label)
        for at, value, share in zip(x, y, shares, strict=True):
            face = colour if share >= ENOUGH else "white"
            axes.plot([at], [value], marker, c=colour, markerfacecolor=face)
        bands = [results[f"{name}_overhead_95"][key] for key in keys]
        low, high = ([100 * band[end] for band in bands] for end in (0, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    control = [(float(key), of["band"]) for key, of in results["control"].items() if of]
    if control:
        x, low, high = zip(
            *((at, 100 * band[0], 100 * band[1]) for at, band in sorted(control)), strict=True
        )
        axes.fill_between(x, low, high, color="#888888", alpha=0.25, linewidth=0, label="control")
    axes.axhline(0, color=PROTOCOLS["none"][1], linestyle=":")
    _log_ticks(axes, ticks, "snapshot interval (s)")


def plot_figure7(results: Figures) -> Figure:
    """Figure 7: run time of fixed work against parallelism, with ABS and without snapshots.

    Arguments:
        results: `figure7` and, if there, `spark`, as `paper` has them; `cores` of the machine.
    """
    places = [place for place in ("figure7", "spark") if place in results]
    figure = new_figure(1)
    (axes,) = figure.axes
    counts: set[int] = set()
    for place in places:
        points = results[place]["points"]
        x = sorted(map(int, points))
        counts.update(x)
        on, line = (" on Spark", "--") if place == "spark" else ("", "-")
        for name in ("none", "abs"):
            label, colour, marker = PROTOCOLS[name]
            values = [points[str(count)][name] for count in x]
            middle = [value["seconds"] for value in values]
            axes.plot(x, middle, f"{marker}{line}", c=colour, label=label + on)
            low, high = ([value["seconds_95"][end] for value in values] for end in (0, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    cores = results.get("cores")
    if cores:
        axes.axvline(cores, color="#AAAAAA", linestyle=":", label="cores of the machine")
    _log_ticks(axes, sorted(counts), "parallelism (worker processes)")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("run time of the same work (s)")
    axes.legend(frameon=False)
    return figure


def plot_cyclic(results: Figures) -> Figure:
    """Plot added processor time on the cyclic graph, and the records in the logs.

    Arguments:
        results: `cyclic`, as `paper` has it.
    """
    from matplotlib.ticker import EngFormatter

    figure = new_figure(2)
    costs, logs = figure.axes
    _overheads(costs, results)
    costs.set_ylabel("added processor time (%)")
    _by_interval(logs, results["details"], "log_records")
    logs.set_yscale("symlog", linthresh=10)
    logs.yaxis.set_major_formatter(EngFormatter(sep=""))
    logs.set_ylim(0, 2 * logs.get_ylim()[1])
    logs.set_ylabel("records in the logs of a snapshot (median)")
    costs.legend(frameon=False)
    return figure


def plot_model(results: Figures) -> Figure:
    """Plot measured against predicted overheads.

    Arguments:
        results: `model`, as `paper` has it.
    """
    figure = new_figure(1)
    (axes,) = figure.axes
    markers = {"words": "word count", "loop": "loop"}
    highest = 1.0
    for (graph, what), shape in zip(markers.items(), "os", strict=True):
        for name, (label, colour, _) in PROTOCOLS.items():
            points = list(results["checks"][graph].get(name, {}).values()) if name != "none" else []
            if not points:
                continue
            x = [100 * point["predicted"] for point in points]
            y = [100 * point["measured"] for point in points]
            bands = [[100 * end for end in point["band"]] for point in points]
            below = [max(0.0, at - low) for at, (low, _) in zip(y, bands, strict=True)]
            above = [max(0.0, high - at) for at, (_, high) in zip(y, bands, strict=True)]
            axes.errorbar(x, y, [below, above], fmt=shape, c=colour, label=f"{label}, {what}")
            highest = max(highest, *x, *y)
    axes.plot([0, highest], [0, highest], ":", c=PROTOCOLS["none"][1], label="as predicted")
    axes.set_xlabel("predicted added processor time (%)")
    axes.set_ylabel("measured (%)")
    axes.legend(frameon=False)
    return figure


def plot_latency(results: Figures) -> Figure:
    """Latency against load, for one and three shuffles, with and without snapshots.

    Arguments:
        results: `runs`, a list of dicts with `load` (share of the highest sustainable rate),
            `shuffles`, `snapshots`, `p50_ms`, `p99_ms`, `steady_p99_ms` and `max_ms`.
    """
    figure = new_figure(len(LATENCIES))
    kinds = sorted({(run["shuffles"], run["snapshots"]) for run in results["runs"]})
    colours = {1: "#0072B2", 3: "#D55E00"}
    for axes, (figure_name, label) in zip(figure.axes, LATENCIES.items(), strict=True):
        for shuffles, snapshots in kinds:
            points = sorted(
                (100 * run["load"], run.get(figure_name, math.nan))
                for run in results["runs"]
                if (run["shuffles"], run["snapshots"]) == (shuffles, snapshots)
            )
            style = "o-" if snapshots else "o:"
            name = f"{shuffles} shuffle{'s' if shuffles > 1 else ''}, "
            name += "snapshots" if snapshots else "none"
            axes.plot(*zip(*points, strict=True), style, c=colours.get(shuffles), label=name)
        _log_values(axes)
        axes.set_xlabel("load (% of the highest sustainable rate)")
        axes.set_ylabel(f"{label} latency (ms)")
    figure.axes[0].legend(frameon=False)
    return figure


def _by_interval(axes: Axes, details: dict[str, dict[str, Figures]], figure_name: str) -> None:
    """One line per protocol for one of the medians in `details`."""
    for name, (label, colour, marker) in PROTOCOLS.items():
        points = sorted(
            (float(key), of[name][figure_name])
            for key, of in details.items()
            if of.get(name, {}).get(figure_name) is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), f"{marker}-", c=colour, label=label)
    _log_ticks(axes, sorted(map(float, details)), "snapshot interval (s)")


def _log_ticks(axes: Axes, ticks: Iterable[float], label: str) -> None:
    """Draw a logarithmic axis with a tick at each measured value."""
    axes.set_xscale("log")
    axes.minorticks_off()
    places = list(ticks)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel(label)


def _log_values(axes: Axes) -> None:
    """Draw a logarithmic axis with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
