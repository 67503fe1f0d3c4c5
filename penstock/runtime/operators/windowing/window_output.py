"""Collect the output of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.dataflow.object_reuse import copy_local_if_shared
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.serialization.record_batch import RecordBatch


class WindowOutput:
    """The records that windows have emitted, each with its event time.

    Arguments:
        probe: as `OperatorContext.mutability_probe` returns it.
        divided: moves records for side outputs; see `SideOutputs.divided`.
    """

    def __init__(self, probe: Any, divided: Callable[[RecordBatch], RecordBatch]) -> None:
        self.records: list[Any] = []
        self.timestamps: list[int] = []
        self._probe, self._divided = probe, divided

    def __len__(self) -> int:
        return len(self.records)

    def emit(self, results: Iterable[Any] | None, timestamp: int) -> None:
        """Add the results of a window, which have one event time or `NO_TIMESTAMP`.

        Mutable results are copied if other code refers to them, such as the state of the window.
        """
        records, probe = self.records, self._probe
        before = len(records)
        for result in results or ():
            try:
                result in probe  # noqa: B015 - raises for mutable values, see `record_loops`
            except TypeError:
                result = copy_local_if_shared(result)
            records.append(result)
        self.timestamps += [timestamp] * (len(records) - before)

    def append(self, result: Any, timestamp: int) -> None:
        """Add the only result of a window; otherwise the same as `emit`."""
        try:
            result in self._probe  # noqa: B015 - see `emit`
        except TypeError:
            result = copy_local_if_shared(result)
        self.records.append(result)
        self.timestamps.append(timestamp)

    def take(self) -> RecordBatch:
        """Remove all records, and return those of the main output as a batch."""
        records, times = self.records, self.timestamps
        self.records, self.timestamps = [], []
        timed = not times or times[0] != NO_TIMESTAMP or times.count(NO_TIMESTAMP) < len(times)
        return self._divided(RecordBatch(records, None, times if timed else None))
