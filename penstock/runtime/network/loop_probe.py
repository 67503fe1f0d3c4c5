"""The elements with which the tasks of a loop find out which watermarks they may release.

`penstock/runtime/task/loop_watermarks.py` explains how. The elements stay in the loop.
"""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass, replace

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime.control.packing import malformed, pack, unpack

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


def pack_probe(element: LoopProbe | ProbeRequest) -> bytes:
    """Return a probe or a request as bytes."""
    return pack(list(astuple(element)))


def unpack_probe(data: bytes | memoryview) -> LoopProbe | ProbeRequest:
    """Return the probe or the request in `data`.

    Raises:
        ProtocolError: if it is malformed.
    """
    values = unpack(bytes(data), "probe")
    with malformed("probe"):
        if len(values) == 1:
            return ProbeRequest(operator.index(values[0]))
        wave, outside, idle, lowest, inside, behind = values
        return LoopProbe(
            operator.index(wave),
            operator.index(outside),
            None if idle is None else operator.index(idle),
            operator.index(lowest),
            operator.index(inside),
            operator.index(behind),
        )
