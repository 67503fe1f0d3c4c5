"""The elements with which the tasks of a loop find out which watermarks they may release.

`loop_watermarks.py` explains how. Both elements stay inside of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["NOTHING", "LoopProbe", "ProbeRequest"]

#: A time after all others: the minimum over no records, or over no inputs.
NOTHING = MAX_WATERMARK + 1


@dataclass(frozen=True)
class LoopProbe:
    """Separates the records of a loop that were sent before a wave from those sent after it.

    All times are milliseconds since the epoch. They cover the tasks that the probe has passed.

    Arguments:
        wave: the number of the wave.
        outside: the smallest watermark from outside of the loop, over the inputs that are neither
            idle nor ended; `NOTHING` if there is no such input.
        idle: the largest watermark from outside over the idle inputs; None if no input is idle.
        lowest: the smallest timestamp of a record that was sent over a back-edge between the last
            two waves; `NOTHING` if no record with a timestamp was.
        inside: the smallest watermark of a task.
        behind: the watermark that may leave the loop.
    """

    wave: int
    outside: int = NOTHING
    idle: int | None = None
    lowest: int = NOTHING
    inside: int = NOTHING
    behind: int = MIN_WATERMARK

    def covering(self, other: LoopProbe) -> LoopProbe:
        """Return this probe, which now also covers the tasks that another probe has passed."""
        idle = [value for value in (self.idle, other.idle) if value is not None]
        return replace(
            self,
            outside=min(self.outside, other.outside),
            idle=max(idle, default=None),
            lowest=min(self.lowest, other.lowest),
            inside=min(self.inside, other.inside),
        )


@dataclass(frozen=True)
class ProbeRequest:
    """Requests a wave, because the watermark from outside has advanced at some task.

    Arguments:
        after: the number of the last wave in which that task has taken part. Each later wave that
            begins a round fulfils the request.
    """

    after: int
