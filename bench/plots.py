"""Draws the figures of `paper` and of `latency --loads` from their results, as SVG and PNG.

Axes of figures 6 and 7 are those of the paper: run time against the snapshot interval, and run
time against parallelism. A figure that is void is not drawn; nothing is interpolated over it but
the line between its neighbours. This module measures nothing, and needs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw",
    "plot_figure6",
    "plot_figure7",
    "plot_latency",
    "plot_logs",
    "plot_waits",
]

#: Name, colour (told apart by the colour-blind, too) and marker of each protocol.
PROTOCOLS = {
    "abs": ("ABS", "#0072B2", "o"),
    "synchronous": ("synchronous", "#D55E00", "s"),
    "chandy_lamport": ("Chandy-Lamport", "#009E73", "^"),
    "none": ("no snapshots", "#555555", "D"),
}
COSTS = {"overhead": "run time", "cpu_overhead": "processor time"}
WAITS = {
    "aligned_ms": "longest wait of a task\nfor its other barriers (ms)",
    "barrier_travel_ms": "barrier from its injection\nto the last cut (ms)",
    "longest_pause_ms": "longest time without arrivals\nat a sink (ms)",
}
LOGS = {"log_records": "records", "log_bytes": "bytes"}
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
        if "details" in paper:
            figures["figure6"] = plot_figure6(paper)
            figures["waits"] = plot_waits(paper)
        if "figure7" in paper or "spark" in paper:
            figures["figure7"] = plot_figure7(paper)
        if "cyclic" in paper:
            figures["cyclic"] = plot_figure6(paper["cyclic"])
            figures["cyclic_logs"] = plot_logs(paper["cyclic"])
    if latency is not None:
        figures["latency"] = plot_latency(latency)
    return [path for name, figure in figures.items() for path in _save(figure, folder, name)]


def plot_figure6(results: Figures) -> Figure:
    """Figure 6: run time and processor time relative to no snapshots, against the interval.

    Arguments:
        results: overheads by interval, with their 95 % intervals, as `paper` has them.
    """
    figure = _figure(2)
    ticks = sorted(map(float, results["details"]))
    for axes, (figure_name, what) in zip(figure.axes, COSTS.items(), strict=True):
        for name, (label, colour, marker) in PROTOCOLS.items():
            if name == "none":
                continue
            middle = results.get(f"{name}_{figure_name}", {})
            bands = results.get(f"{name}_{figure_name}_95", {})
            valid = sorted((float(key), key) for key, value in middle.items() if value is not None)
            x = [interval for interval, _ in valid]
            axes.plot(x, [1 + middle[key] for _, key in valid], f"{marker}-", c=colour, label=label)
            low, high = ([1 + bands[key][end] for _, key in valid] for end in (0, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(1, color=PROTOCOLS["none"][1], linestyle=":", label=PROTOCOLS["none"][0])
        _log_ticks(axes, ticks, "snapshot interval (s)")
        axes.set_ylabel(f"{what} relative to no snapshots")
    figure.axes[0].legend(frameon=False)
    return figure


def plot_figure7(results: Figures) -> Figure:
    """Figure 7: run time of fixed work against parallelism, with ABS and without snapshots.

    Arguments:
        results: `figure7` and, if there, `spark`, as `paper` has them; `cores` of the machine.
    """
    places = [place for place in ("figure7", "spark") if place in results]
    figure = _figure(1)
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


def plot_logs(results: Figures) -> Figure:
    """The back-edge logs in a snapshot of the cyclic graph, against the interval.

    Arguments:
        results: the `cyclic` part of `paper`.
    """
    from matplotlib.ticker import EngFormatter

    figure = _figure(len(LOGS))
    for axes, (figure_name, unit) in zip(figure.axes, LOGS.items(), strict=True):
        _by_interval(axes, results["details"], figure_name)
        axes.set_yscale("symlog", linthresh=10)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylim(0, 2 * axes.get_ylim()[1])
        axes.set_ylabel(f"{unit} in the logs of a snapshot (median)")
    figure.axes[0].legend(frameon=False)
    return figure


def plot_waits(results: Figures) -> Figure:
    """Alignment, barrier travel and pauses, against the interval.

    Arguments:
        results: `details` by interval and protocol, as `paper` has them.
    """
    figure = _figure(len(WAITS))
    for axes, (figure_name, label) in zip(figure.axes, WAITS.items(), strict=True):
        _by_interval(axes, results["details"], figure_name)
        _log_values(axes)
        axes.set_ylabel(label)
    figure.axes[-1].legend(frameon=False)
    return figure


def plot_latency(results: Figures) -> Figure:
    """Latency against load, for one and three shuffles, with and without snapshots.

    Arguments:
        results: `runs`, a list of dicts with `load` (share of the highest sustainable rate),
            `shuffles`, `snapshots`, `p50_ms`, `p99_ms`, `steady_p99_ms` and `max_ms`.
    """
    figure = _figure(len(LATENCIES))
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


def _figure(panels: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * panels + 0.6, 3.8), layout="constrained")
    figure.subplots(1, panels)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure


def _log_ticks(axes: Axes, ticks: Iterable[float], label: str) -> None:
    """A logarithmic axis with a tick at each value that was measured."""
    axes.set_xscale("log")
    axes.minorticks_off()
    places = list(ticks)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel(label)


def _log_values(axes: Axes) -> None:
    """A logarithmic axis of values, with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    import matplotlib

    # Text stays text, and the same result gives the same bytes.
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150, metadata={"Software": None})
    return paths
