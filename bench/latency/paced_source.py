"""A source that keeps to an absolute schedule, as a log that others append to would.

Record *k* of a split is there at `start + k / rate`, whatever the engine does meanwhile; what a
pause held up is due at once after it, and the engine has to catch up. (A `GeneratorSource` starts
its schedule anew when it is opened, which would hide what a recovery costs.) Records come in
slices of a prepared list or from a function of whole ranges, so that making them costs next to
nothing beside what the engine does with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["PacedSource", "Slices"]

#: Asks for records: `slices(first, count)` gives records `first`, `first + 1`, … of a split, at
#: most `count` and at least one of them; the same ones each time.
Slices = Callable[[int, int], list[Any]]

#: The shortest wait asked for. A read per record would cost more than the record, and who reads
#: one or two at a time is never done.
_SHORTEST_WAIT_SECONDS = 0.001


class PacedSource(Source):
    """Endless splits, one per reader, until a file appears.

    Arguments:
        slices: called as `slices(subtask, parallelism)` in the worker; gives what makes records.
        stop: the source ends when this file is there.
        start: the time on `time.monotonic()`, in seconds, at which the schedule begins.
        records_per_second: over all readers; None for as fast as they are taken.
        at_once: so many records of each split are due from the start.
        observer: called as `observer(subtask)` in the worker; hears what that reader does.
    """

    bounded = True

    def __init__(
        self,
        slices: Callable[[int, int], Slices],
        stop: Path,
        *,
        start: float,
        records_per_second: float | None = None,
        at_once: int = 0,
        observer: Callable[[int], Observer] | None = None,
    ) -> None:
        self.slices = slices
        self.stop = stop
        self.start = start
        self.records_per_second = records_per_second
        self.at_once = at_once
        self.observer = observer

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """One split per reader."""
        return SubtaskEnumerator([[i, parallelism] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that keeps to the schedule."""
        return _PacedReader(self, context)

    def due_at(self, index: int, parallelism: int) -> float:
        """When record `index` of a split is due, in seconds on `time.monotonic()`."""
        assert self.records_per_second is not None
        late = max(0, index - self.at_once)
        return self.start + late * parallelism / self.records_per_second


class _PacedReader(SourceReader):
    """Reads one split."""

    def __init__(self, source: PacedSource, context: ReaderContext) -> None:
        self._source = source
        self._stop = os.fspath(source.stop)
        self._slices = source.slices(context.subtask, context.parallelism)
        self._observer = source.observer(context.subtask) if source.observer else None
        self._next = 0
        rate = source.records_per_second
        self._rate = None if rate is None else rate / context.parallelism

    def open(self, split: Split, position: Any) -> None:
        del split
        self._next = position or 0
        if self._observer is not None:
            self._observer.opened(self._next)

    def read(self, max_records: int) -> Read:
        if os.path.exists(self._stop):  # noqa: PTH110 - per read, and a Path costs ten times more
            return Read([], self._next, finished=True)
        source, wait = self._source, 0.0
        room = max_records
        if self._rate is not None:
            now = time.monotonic() - source.start
            due = source.at_once + max(0, int(now * self._rate)) - self._next
            if due <= room:
                room = due
                next_due = (self._next + max(0, due) + 1 - source.at_once) / self._rate
                wait = max(next_due - now, _SHORTEST_WAIT_SECONDS)
            if room <= 0:
                return Read([], self._next, False, wait)
        records = self._slices(self._next, room)
        # A cycle of records may end before.
        wait = wait if len(records) == room else 0.0
        self._next += len(records)
        if self._observer is not None:
            self._observer.read(self._next)
        return Read(records, self._next, False, wait)

    def close(self) -> None:
        if self._observer is not None:
            self._observer.close(self._next)


class Observer:
    """Hears what a reader does, in the worker."""

    def opened(self, position: int) -> None:
        """Note that the reader begins at `position`."""

    def read(self, position: int) -> None:
        """Note that records before `position` were read."""

    def close(self, position: int) -> None:
        """Note that the reader was closed at `position`."""
