"""Measure delays of a process by other processes, swapping and garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.runtime.system.processor import run_times

#: The estimated time for which a thread waits after the kernel has taken its processor, in
#: seconds. It is used where the kernel does not count this time.
SWITCH_SECONDS = 0.004


class ProcessMeter:
    """A context manager that measures this process.

    Arguments:
        times: returns the two times of `run_times`.
    """

    def __init__(self, times: Callable[[], tuple[int, int] | None] = run_times) -> None:
        self._times = times
        self._collecting = 0.0
        self._began: float | None = None

    def __enter__(self) -> ProcessMeter:
        gc.callbacks.insert(0, self._collection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The user's code may have removed the callback itself.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, info: dict[str, Any]) -> None:
        del info
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self._collecting += time.perf_counter() - self._began
            self._began = None

    def figures(self) -> list[float]:
        """Return the times and counts since the process began.

        The thread that runs the tasks calls this method.

        Returns:
            The seconds for which this thread has waited for a processor, those for which other
            virtual machines had one, the number of times at which the kernel took the processor
            from the thread, the number of pages that were read from disk, and the seconds of
            garbage collection.
        """
        whole = resource.getrusage(resource.RUSAGE_SELF)
        thread = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
        switches, times = thread.ru_nivcsw, self._times()
        waited = switches * SWITCH_SECONDS if times is None else times[1] / 1e9
        return [waited, stolen_seconds(), switches, whole.ru_majflt, self._collecting]


def stolen_seconds() -> float:
    """Return for how long other virtual machines had a processor of this one, in seconds.

    It is the mean of all processors; 0 if the kernel does not count this.
    """
    try:
        with open("/proc/stat", "rb", buffering=0) as file:
            stolen = int(file.read(256).split(b"\n", 1)[0].split()[8])
        return stolen / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return 0.0
