"""`python -m bench.counts`: work per record, counted and not timed; part of `make check`.

    python -m bench.counts              compares with the bounds; ends with 1 if one is exceeded
    python -m bench.counts --record     writes new bounds for this version of Python
    python -m bench.counts --top 10     where the bytecodes are, for each job
    python -m bench.counts --against R  compares with revision R instead (`make bench-guard`)

For each job of `bench.counts.jobs`, up to four figures, all per record:

    calls       calls of functions, in Python or in C, made by Python code (`sys.setprofile`)
    bytecodes   instructions of the interpreter (`sys.settrace` with opcodes)
    peak_bytes  the highest memory in use above that before (`tracemalloc`)
    messages    frames that a worker sends to another one, and acknowledgements of snapshots

They are the same on a slow machine, a busy one, and the next time; a time is not. So a bound that
is 5 % above today's figure tells a change that makes the engine do more per record, and nothing
else. What they do not see: what a call in C costs, caches, locks, system calls. For these there is
`make bench-compare`. Bounds are recorded again when more work is worth it. So many small steps
could pass them: `make bench-guard` compares with a release, and allows a tenth in all.

Bytecodes differ between versions of Python, and so do the calls: bounds are kept per minor
version, in `bounds.toml`. Where there are none, figures are printed and nothing is compared.
"""

from __future__ import annotations

import gc
import platform
import sys
import tomllib
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click

from bench.counts.guard import guard
from bench.counts.jobs import SCENARIOS, Scenario

__all__ = ["BOUNDS", "TOLERANCE", "bytecodes", "compare", "main", "measure", "read", "write"]

BOUNDS = Path(__file__).with_name("bounds.toml")
#: A bound is so much above what was counted when it was recorded: a share of it, and at least so
#: many, since a few more per batch are not the matter.
TOLERANCE, LEAST = 0.05, 0.05
#: Messages per record are few, so the least of them is smaller.
MESSAGES = "messages"
HEAD = """\
# Bounds of `python -m bench.counts`, per record, by minor version of Python: `was` is what was
# counted when the bound was recorded. Not edited by hand: `python -m bench.counts --record`.
"""

Figures = dict[str, float]
Bounds = dict[str, dict[str, dict[str, float]]]


def measure(names: Iterable[str] = tuple(SCENARIOS)) -> Figures:
    """Count the work of each job; figures by names such as `wordcount.calls`, per record."""
    figures: Figures = {}
    for name in names:
        scenario = SCENARIOS[name]
        # What is done once in a process (imports, caches) is no work per record.
        with scenario.ready() as work:
            work()
        counters: dict[str, Callable[[Scenario], float]] = {
            "calls": _calls,
            "bytecodes": lambda scenario: bytecodes(scenario).total(),
            "peak_bytes": _peak_bytes,
        }
        for figure, count in counters.items():
            figures[f"{name}.{figure}"] = round(count(scenario) / scenario.count, 3)
        if scenario.sends:
            with scenario.ready() as work:
                figures[f"{name}.{MESSAGES}"] = round(work() / scenario.count, 5)
    return figures


def _calls(scenario: Scenario) -> float:
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        del frame, argument
        if event in ("call", "c_call"):
            count += 1

    with scenario.ready() as work, _Still():
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            work()
        finally:
            sys.setprofile(before)
    return count


def bytecodes(scenario: Scenario) -> Counter[CodeType]:
    """How many instructions of the interpreter the work takes, by function."""
    counts: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "opcode":
            counts[frame.f_code] += 1
        else:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    with scenario.ready() as work, _Still():
        before = sys.gettrace()
        # Python 3.12 reports instructions only if some frame asked for them before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
    return counts


def _peak_bytes(scenario: Scenario) -> float:
    with scenario.ready() as work, _Still():
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


class _Still:
    """No garbage collection meanwhile: when it comes depends on what was there before."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *exception: object) -> None:
        gc.enable()


def read(path: Path = BOUNDS) -> Bounds:
    """All bounds; by version of Python, then figure. None if there is no file."""
    return tomllib.loads(path.read_text()) if path.exists() else {}


def write(figures: Figures, path: Path = BOUNDS, python: str | None = None) -> None:
    """Record bounds for a version of Python, and leave those of others as they are."""
    bounds = read(path)
    bounds[python or _python()] = {
        name: {"was": value, "bound": round(value + _tolerance(name, value), 5)}
        for name, value in figures.items()
    }
    lines = [HEAD]
    for version, own in sorted(bounds.items()):
        lines.append(f'["{version}"]')
        for name, one in own.items():
            lines.append(f'"{name}" = {{ was = {one["was"]:g}, bound = {one["bound"]:g} }}')
        lines.append("")
    path.write_text("\n".join(lines))


def _tolerance(name: str, value: float) -> float:
    least = 1e-5 if name.endswith(MESSAGES) else LEAST
    return max(value * TOLERANCE, least)


def compare(figures: Figures, bounds: dict[str, dict[str, float]]) -> tuple[list[str], list[str]]:
    """Return a line for each figure above its bound, and for each well below it."""
    above, below = [], []
    for name, value in figures.items():
        own = bounds.get(name)
        if own is None:
            above.append(f"{name} is {value:g} per record, and has no bound")
        elif value > own["bound"]:
            above.append(
                f"{name} grew from {own['was']:g} to {value:g} per record; "
                f"its bound is {own['bound']:g}"
            )
        elif value < own["was"] - _tolerance(name, own["was"]):
            below.append(f"{name} fell from {own['was']:g} to {value:g} per record")
    return above, below


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _show_top(count: int) -> None:
    """Where the bytecodes of each job are."""
    for name, scenario in SCENARIOS.items():
        print(f"{name}, bytecodes per {scenario.what}:")
        for code, instructions in bytecodes(scenario).most_common(count):
            place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
            print(f"  {instructions / scenario.count:8.2f}  {code.co_qualname}  {place}")


@click.command()
@click.option("--record", is_flag=True, help="Write new bounds for this version of Python.")
@click.option("--top", type=int, help="Print the functions with the most bytecodes instead.")
@click.option("--against", help="Compare with the engine of this revision instead.")
def main(record: bool, top: int | None, against: str | None) -> None:
    """Count the engine's work per record, and compare it with the bounds in bounds.toml."""
    if against is not None:
        guard(against)
        return
    if top is not None:
        _show_top(top)
        return
    figures = measure()
    bounds = read().get(_python(), {})
    for name, value in figures.items():
        bound = f"{bounds[name]['bound']:12g}" if name in bounds else f"{'none':>12}"
        print(f"{name:24}{value:12g}{bound}")
    if record:
        write(figures)
        print(f"recorded for Python {_python()} in {BOUNDS.name}")
        return
    if not bounds:
        print(f"there are no bounds for Python {_python()}: nothing is compared")
        return
    above, below = compare(figures, bounds)
    for line in below:
        print(f"{line}: a lower bound can be recorded")
    if above:
        sys.exit(
            "bench.counts: the engine does more for a record than before\n  "
            + "\n  ".join(above)
            + "\nfind out where with `python -m bench.counts --top 10`, here and on the revision "
            "before. If it is worth it, record new bounds with `python -m bench.counts --record` "
            "and commit bench/counts/bounds.toml."
        )


if __name__ == "__main__":
    main()
