"""Measure the processor time of a thread, and its share of the wanted time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: The period between two measurements of the share, in seconds. A measurement takes some 10 us.
PERIOD_SECONDS = 0.1
#: A thread that runs, or waits for a processor, for less than this share of the time is idle.
BUSY_SHARE = 1 / 2


class Processor(Protocol):
    """The processor time of the thread that runs the tasks of a worker."""

    @property
    def share(self) -> float:
        """The share of a processor that the thread gets when it wants to run, up to 1.

        It is 1 on a quiet machine, or if the thread is mostly idle. If there are three busy threads
        for each processor, it is 1/3.
        """

    def seconds(self) -> float:
        """Return the processor time that the thread has used, in seconds."""

    def measure(self, now: float) -> None:
        """Measure the share, if the last measurement is old enough.

        Arguments:
            now: the time in seconds.
        """


class ThreadProcessor:
    """Measures the thread that calls its methods.

    Arguments:
        times: returns the two times of `run_times`.
    """

    def __init__(self, times: Callable[[], tuple[int, int] | None] | None = None) -> None:
        #: The share of a processor that the thread has got in the last few 100 ms.
        self.share = 1.0
        self.seconds = time.thread_time
        self._times = times or run_times
        self._last = 0, 0
        self._measured = 0.0

    def measure(self, now: float) -> None:
        """Measure the share, if the last measurement is old enough; see `Processor`."""
        passed = now - self._measured
        if passed < PERIOD_SECONDS:
            return
        self._measured = now
        times = self._times()
        if times is None:
            return
        ran, waited = (time - before for time, before in zip(times, self._last, strict=True))
        self._last = times
        # A thread that is mostly idle waits for a moment at each wake-up, also on a quiet machine.
        idle = ran + waited < BUSY_SHARE * passed * 1e9
        self.share = (self.share + (1.0 if idle else ran / (ran + waited))) / 2


class WholeProcessor:
    """A processor that no other thread uses, for simulations.

    Arguments:
        clock: returns the time in seconds, which is also the processor time.
    """

    share = 1.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = clock

    def measure(self, now: float) -> None:
        """Do nothing, since the share is always 1."""


def run_times() -> tuple[int, int] | None:
    """Return for how long this thread has run, and has waited for a processor, in nanoseconds.

    Return None if the kernel does not count this.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            ran, waited, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return ran, waited
