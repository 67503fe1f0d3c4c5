"""How steady the machine was while something was measured: when it was slow by itself.

On a virtual machine all cores may be many times slower for some ten milliseconds, again and again,
whatever runs on them; nothing of that is in the figures of the operating system. A watcher of its
own process does the same small piece of work a hundred times a second, and takes the processor's
time for it: that does not depend on what other processes of this machine want. Where a piece takes
several times what it usually does, no program is quick.

A *slow moment* is from the last usual piece before it to the first one after it, and as long again:
what has queued up meanwhile is yet to be worked off, which takes about that long at half load. A
figure with the prefix `steady_` leaves out what was under way in such a moment, and nothing else;
the figure without the prefix has it all. `slow_percent` is the share of the time in such moments.
"""

from __future__ import annotations

import json
import select
import signal
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType

from bench.common.harness import WrongResultError

__all__ = ["Watch", "slow_moments"]

#: Between two looks; the watcher uses about one percent of a core.
EVERY_SECONDS = 0.01
#: A piece that took so many times what it takes at the median was slow.
SLOWER = 4.0
_ADDITIONS = 300


class Watch:
    """Watches the machine while its block runs; afterwards, tells when it was slow."""

    def __init__(self) -> None:
        #: Beginnings and ends, in order, on the clock of `time.monotonic`.
        self.moments: list[tuple[float, float]] = []
        self._ends: list[float] = []

    def __enter__(self) -> Watch:
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # That its input is closed ends it, so it does not outlive this process.
        told, _ = self._watcher.communicate()
        if kind is not None:
            return
        if self._watcher.returncode:
            raise WrongResultError(
                "the process that watches how steady the machine is ended with code "
                f"{self._watcher.returncode}: without it the figures say too little, so run again"
            )
        self.take(json.loads(told))

    def take(self, moments: Sequence[Sequence[float]]) -> None:
        """Return the figures of the watcher."""
        self.moments = [(begin, end) for begin, end in moments]
        self._ends = [end for _, end in self.moments]

    def was_slow(self, begin: float, end: float) -> bool:
        """Whether the machine was slow at any time between these, in seconds."""
        index = bisect_left(self._ends, begin)
        return index < len(self.moments) and self.moments[index][0] <= end

    def slow_percent(self, begin: float, end: float) -> float:
        """Return the share of that time in slow moments."""
        slow = sum(max(0.0, min(end, e) - max(begin, b)) for b, e in self.moments)
        return round(100 * slow / (end - begin), 1)


def slow_moments(looks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """When the machine was slow.

    Arguments:
        looks: in order, when a piece of work was done and how long it took, in seconds.

    Returns beginnings and ends, in order; they do not overlap.
    """
    if not looks:
        return []
    limit = SLOWER * statistics.median(took for _, took in looks)
    moments: list[tuple[float, float]] = []
    begin: float | None = looks[0][0] if looks[0][1] > limit else None
    for (before, _), (at, took) in pairwise(looks):
        if took > limit:
            begin = before if begin is None else begin
        elif begin is not None:
            _add(moments, begin, at)
            begin = None
    if begin is not None:
        _add(moments, begin, looks[-1][0])
    return moments


def _add(moments: list[tuple[float, float]], begin: float, end: float) -> None:
    end += end - begin
    if moments and begin <= moments[-1][1]:
        begin, end = moments[-1][0], max(end, moments[-1][1])
        moments.pop()
    moments.append((begin, end))


def piece() -> float:
    """Return the processor's seconds for a small piece of work: the quicker of two.

    An interrupt in one of them is not what is looked for.
    """
    clock = time.thread_time
    took = []
    for _ in range(2):
        began, total = clock(), 0
        for number in range(_ADDITIONS):
            total += number
        took.append(clock() - began)
    return min(took)


def _watch() -> None:
    """Look until the input is closed, then tell what was found."""
    # Who measures is interrupted, and then closes it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    looks = []
    while not select.select([sys.stdin], [], [], EVERY_SECONDS)[0]:
        looks.append((time.monotonic(), piece()))
    print(json.dumps(slow_moments(looks)))


if __name__ == "__main__":
    _watch()
