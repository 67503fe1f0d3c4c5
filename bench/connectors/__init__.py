"""`connectors`: how many records a second come in and go out, part by part.

A part is a module with a function `measure(records, rounds, folder, say)`, which `PARTS` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.common.harness import Figures, Say, machine
from bench.connectors import formats, kafka, postgres

__all__ = ["PARTS", "measure"]

#: The parts, by the name for `--only`.
PARTS: dict[str, Callable[[int | None, int, str | None, Say], Figures]] = {
    "formats": formats.measure,
    "kafka": kafka.measure,
    "postgres": postgres.measure,
}


def measure(
    only: Sequence[str], records: int | None, rounds: int, folder: str | None, say: Say
) -> Figures:
    """Measure some parts, or all of them.

    Arguments:
        only: the names of the parts; empty for all.
        records: the number of records of each measurement; None for that of the part.
        rounds: the number of runs; the figures are those of the best.
        folder: the folder for inputs and snapshots; None for a temporary one.
        say: told what happens.
    """
    figures: Figures = {}
    for name in only or PARTS:
        say(name)
        figures |= PARTS[name](records, rounds, folder, say)
    return {**figures, **machine()}
