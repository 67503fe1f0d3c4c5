"""Keep Python's cyclic garbage collector from visiting the objects of keyed state.

A worker has hundreds of thousands of tuples in its state, and replaces a tuple at each change. The
collector visits all objects that were created since its last run, and all objects that they refer
to. A visit takes about a microsecond if the object is not in the processor's cache. While the
collector runs, no records are processed. In `bench checkpoint`, it ran for 120 ms for 200,000
objects. These visits are useless. Python frees an object when its last reference is removed, and
state has no reference cycles.

So this module freezes new objects before the collector visits them (`gc.freeze`). The call moves a
list and visits no object. Cycles are collected only when the memory of the process has grown by a
certain share, because unreachable cycles may be the cause. If many cycles are found, functions of
the user create them. From then on, the collector works as usual.

An explicit `gc.collect()` in user code still visits all objects.

`docs/inside/decisions/026-garbage-collector.md` has the reasons and the figures.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)

#: The number of new objects that are frozen together. It is high enough that most objects with a
#: short life are freed before they would be frozen.
NEW_OBJECTS = 200_000
#: The number of new objects at which the collector runs, once it works as usual.
NEW_OBJECTS_WITH_CYCLES = 20_000
_NEVER = 1_000_000_000
#: The growth of resident memory after which cycles are collected. It is the sum of a share of the
#: memory after the last collection and a fixed number of bytes.
GROWTH_SHARE, GROWTH_BYTES = 1 / 2, 128 * 1024 * 1024
#: The number of objects in cycles above which the collector works as usual from then on.
MANY_IN_CYCLES = 20_000


def process_memory() -> tuple[int, int]:
    """Return the current and the highest resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak, peak  # macOS counts in bytes, and does not provide the current size
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), peak * 1024


class GcTuning:
    """A context manager that tunes and restores this process's garbage collector.

    Arguments:
        memory: a function that returns the current and the highest resident memory of the process,
            in bytes.
    """

    def __init__(self, memory: Callable[[], tuple[int, int]] = process_memory) -> None:
        #: Whether new objects are frozen, so that the collector does not visit them.
        self.freezing = True
        self._memory = memory
        self._before = (NEW_OBJECTS, 0, 0)
        self._last_bytes: int | None = None

    def __enter__(self) -> GcTuning:
        self._before = gc.get_threshold()
        gc.freeze()
        # New objects are frozen before they reach the older generations, which stay empty.
        gc.set_threshold(NEW_OBJECTS, _NEVER, _NEVER)
        gc.callbacks.append(self._before_collection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove_callback()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _remove_callback(self) -> None:
        # The user's code may have removed the callback itself.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._before_collection)

    def _before_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "start":
            return
        if info["generation"] < 2:
            gc.freeze()
        else:
            # This is a full collection, which `collect_if_grown` or user code has asked for.
            gc.unfreeze()

    def collect_if_grown(self, resident: int) -> None:
        """Collect cycles if memory has grown since the last collection of cycles.

        Arguments:
            resident: the current resident memory of this process, in bytes.
        """
        if not self.freezing:
            return
        if self._last_bytes is None:
            self._last_bytes = resident
        if resident <= self._last_bytes * (1 + GROWTH_SHARE) + GROWTH_BYTES:
            return
        found = gc.collect()
        self._last_bytes = self._memory()[0]
        if found < MANY_IN_CYCLES:
            gc.freeze()
            return
        self.freezing = False
        self._remove_callback()
        gc.set_threshold(NEW_OBJECTS_WITH_CYCLES, 20, 20)
        logger.info(
            "%d objects were in unreachable cycles; from now on Python collects cycles regularly, "
            "which delays records",
            found,
        )
