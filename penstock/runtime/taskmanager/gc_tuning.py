"""Keeps Python's collector of cycles away from state. It knows nothing of tasks.

A worker holds hundreds of thousands of tuples, and replaces each at every change. Python's
collector goes through all that came since it did so last, and through all that these refer to:
about a microsecond each where they are not in the processor's cache, in which no record moves
(120 ms for 200,000 in `bench checkpoint`). It finds nothing: what has no more references is freed
without it, and there are no cycles in state.

So objects are set aside (`gc.freeze`, which moves a list and touches none) whenever the collector
would go through new ones. Only if memory grows by a share, which may be cycles that nothing
refers to, they are looked at. If there are many cycles, somebody's functions make them: from then
on Python's collector works as usual.

`gc.collect()`, said by anybody, finds what it always does.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import sys
from types import TracebackType
from typing import Any

__all__ = ["Collector", "memory"]

logger = logging.getLogger(__name__)

#: More new objects than a slice of user code makes, so that few are set aside that are soon gone.
NEW_OBJECTS = 200_000
#: The same where they are gone through.
NEW_OBJECTS_WITH_CYCLES = 20_000
_NEVER = 1_000_000_000
#: By so much memory may grow before cycles are looked for.
GROWTH_SHARE, GROWTH_BYTES = 1 / 2, 128 * 1024 * 1024
#: With so many objects in them, cycles are what memory has grown by.
MANY_IN_CYCLES = 20_000


class Collector:
    """Sets the collector of this process up, as a context manager; and back again.

    `setting_aside` is whether new objects are set aside and not gone through.
    """

    def __init__(self) -> None:
        self.setting_aside = True
        self._before = (NEW_OBJECTS, 0, 0)
        self._looked_at: int | None = None

    def __enter__(self) -> Collector:
        self._before = gc.get_threshold()
        gc.freeze()
        # The older generations stay empty.
        gc.set_threshold(NEW_OBJECTS, _NEVER, _NEVER)
        gc.callbacks.append(self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _stop(self) -> None:
        # Somebody's function may have emptied the list.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._hear)

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "start":
            return
        if info["generation"] < 2:
            gc.freeze()
        else:
            # Asked for by `look`, or by the user, who is to get all that there is.
            gc.unfreeze()

    def look(self, resident: int) -> None:
        """Look for cycles if memory has grown since they were looked for.

        Arguments:
            resident: bytes of memory that this process has now.
        """
        if not self.setting_aside:
            return
        if self._looked_at is None:
            self._looked_at = resident
        if resident <= self._looked_at * (1 + GROWTH_SHARE) + GROWTH_BYTES:
            return
        found = gc.collect()
        self._looked_at = memory()[0]
        if found < MANY_IN_CYCLES:
            gc.freeze()
            return
        self.setting_aside = False
        self._stop()
        gc.set_threshold(NEW_OBJECTS_WITH_CYCLES, 20, 20)
        logger.info(
            "%d objects were in cycles that nothing referred to; Python looks for such regularly "
            "from now on, which holds records up",
            found,
        )


def memory() -> tuple[int, int]:
    """Resident memory of this process in bytes: now, and at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak, peak  # in bytes there, and the current size is not to be had
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), peak * 1024
