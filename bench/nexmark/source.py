"""The source of Nexmark events: its position is the number of the next event.

Blocks of events are dealt out to the splits in turns, so that all splits are at about the same
event time. All splits together have the same events at any parallelism.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bench.nexmark.generator import BLOCK, Generator, NexmarkConfig
from bench.nexmark.model import Event
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)

__all__ = ["NexmarkSource"]


class NexmarkSource(Source):
    """Generates the events of a configuration, as fast as they are taken.

    Arguments:
        config: the configuration of the generator.
        folder: a folder in which each subtask writes when it began and ended, with its processor
            time. All subtasks begin together then. None for none of this.
        linger_seconds: the time for which the source stays open after its last event. Windows of
            processing time fire only while it is open.
    """

    def __init__(
        self, config: NexmarkConfig, folder: Path | None = None, linger_seconds: float = 0.0
    ) -> None:
        self.config = config
        self.folder = folder
        self.linger_seconds = linger_seconds

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with a split for each reader."""
        return SubtaskEnumerator([[i, parallelism] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that generates the events of a split."""
        return _NexmarkReader(self, context)


class _NexmarkReader(SourceReader):
    """Generates the blocks *i*, *i + n*, *i + 2n* … of split *i* of *n*."""

    def __init__(self, source: NexmarkSource, context: ReaderContext) -> None:
        self._source = source
        self._context = context
        self._generator = Generator(source.config)
        self._step = 1
        self._next = 0
        self._events: list[Event] = []
        self._times: list[int] = []
        self._linger_until: float | None = None
        self._started = False

    def open(self, split: Split, position: Any) -> None:
        """Begin at the number of an event."""
        first, self._step = split.payload
        self._next = first * BLOCK if position is None else position
        self._events = []
        if not self._started and self._source.folder is not None:
            self._start_together(self._source.folder)

    def read(self, max_records: int) -> Read:
        """Return the next events, at most those of one block."""
        if self._next >= self._source.config.events:
            return self._last([], [])
        block, start = divmod(self._next, BLOCK)
        if not self._events:
            self._events, self._times = self._generator.block(block)
        end = min(start + max_records, len(self._events))
        events, times = self._events[start:end], self._times[start:end]
        self._next += end - start
        if end == len(self._events):
            self._events = []
            self._next = (block + self._step) * BLOCK
        if self._next >= self._source.config.events:
            return self._last(events, times)
        return TimedRead(Read(events, self._next), times)

    def _last(self, events: list[Event], times: list[int]) -> Read:
        """Return the last events, and keep the split open for a while if that is wanted."""
        if self._linger_until is None:
            self._linger_until = time.monotonic() + self._source.linger_seconds
        left = self._linger_until - time.monotonic()
        finished = left <= 0
        read = Read(events, self._next, finished, 0.0 if finished else min(left, 0.05))
        return TimedRead(read, times)

    def _start_together(self, folder: Path) -> None:
        """Wait until all subtasks are here, and write when this one begins."""
        self._started = True
        subtask = self._context.subtask
        (folder / f"ready-{subtask}").touch()
        others = [folder / f"ready-{i}" for i in range(self._context.parallelism)]
        while not all(path.exists() for path in others):
            os.sched_yield()
        self._note("began")

    def close(self) -> None:
        """Write the processor time of this process."""
        if self._started:
            self._note("ended")

    def _note(self, moment: str) -> None:
        folder = self._source.folder
        assert folder is not None
        noted = {"at": time.monotonic(), "cpu": time.process_time()}
        (folder / f"{moment}-{self._context.subtask}.json").write_text(json.dumps(noted))
