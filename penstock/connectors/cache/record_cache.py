"""Store the records that one execution writes, and that later executions read."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.connectors.cache.cache_sink import COMPLETE, CacheSink
from penstock.connectors.cache.cache_source import CacheSource
from penstock.dataflow.functions import ProcessFunction
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

__all__ = ["RecordCache", "WithTimestamp"]


class RecordCache:
    """Stores the records of a cached stream. It is empty until the first execution has ended.

    An execution that finds no stored records writes them into a new folder. So the output of a
    failed execution is never read. The folders are removed with the cache, or when the process of
    the program ends.

    Arguments:
        timed: whether the records have event times, which are then kept, too.
        record_functions: the functions that make the records; they mention the record classes.
    """

    def __init__(self, timed: bool, record_functions: list[Any]) -> None:
        self.timed = timed
        self._record_functions = record_functions
        self._folder: TemporaryFolder | None = None
        self._runs = 0

    @property
    def is_stored(self) -> bool:
        """Whether an execution has written all records."""
        return self._runs > 0 and (self._run() / COMPLETE).exists()

    def with_timestamps(self) -> ProcessFunction:
        """Return a function that emits pairs (event time, record)."""
        return WithTimestamp()

    def sink(self, resumed: bool) -> CacheSink:
        """Return a sink that writes the records of the next execution.

        Arguments:
            resumed: whether the execution resumes from a snapshot. It has not all records then, so
                an execution after it computes them again.
        """
        if self._folder is None:
            self._folder = TemporaryFolder("cache")
            weakref.finalize(self, self._folder.remove)
        self._runs += 1
        self._run().mkdir()
        return CacheSink(str(self._run()), resumed)

    def source(self) -> CacheSource:
        """Return a source that reads the stored records."""
        return CacheSource(str(self._run()), self.timed, self._record_functions)

    def invalidate(self) -> None:
        """Forget the records."""
        if self._folder is not None:
            self._folder.remove()
        self._folder, self._runs = None, 0

    def _run(self) -> Path:
        assert self._folder is not None
        return self._folder.path / f"run-{self._runs}"


class WithTimestamp(ProcessFunction):
    """Emits pairs (event time, record)."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        """Emit a record with its event time."""
        time = ctx.timestamp()
        yield NO_TIMESTAMP if time is None else time, value
