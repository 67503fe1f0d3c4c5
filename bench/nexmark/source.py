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

from bench.nexmark.generator import BIDS_OF_BLOCK, BLOCK, Generator, NexmarkConfig
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.source import (
    ColumnarRead,
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
        columns: whether to emit the bids only, as Arrow batches, without event times. The position
            is the number of the next bid then.
    """

    def __init__(
        self,
        config: NexmarkConfig,
        folder: Path | None = None,
        linger_seconds: float = 0.0,
        columns: bool = False,
    ) -> None:
        self.config = config
        self.folder = folder
        self.linger_seconds = linger_seconds
        self.columns = columns

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator with a split for each reader."""
        return SubtaskEnumerator([[i, parallelism] for i in range(parallelism)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that generates the events of a split."""
        return (_BidColumnsReader if self.columns else _NexmarkReader)(self, context)


class _NexmarkReader(SourceReader):
    """Generates the blocks *i*, *i + n*, *i + 2n* … of split *i* of *n*."""

    block_size = BLOCK

    def __init__(self, source: NexmarkSource, context: ReaderContext) -> None:
        self._source = source
        self._context = context
        self._generator = Generator(source.config)
        self._total = self._count(source.config)
        self._step = 1
        self._next = 0
        self._loaded: int | None = None
        self._linger_until: float | None = None
        self._started = False

    def open(self, split: Split, position: Any) -> None:
        """Begin at the number of an event."""
        first, self._step = split.payload
        self._next = first * self.block_size if position is None else position
        self._loaded = None
        if not self._started and self._source.folder is not None:
            self._start_together(self._source.folder)

    def read(self, max_records: int) -> Read:
        """Return the next events, at most those of one block."""
        if self._next >= self._total:
            return Read([], self._next, *self._end())
        block, start = divmod(self._next, self.block_size)
        if self._loaded != block:
            self._load(block)
            self._loaded = block
        size = min(self.block_size, self._total - block * self.block_size)
        end = min(start + max_records, size)
        self._next = block * self.block_size + end
        if end == size:
            self._next = (block + self._step) * self.block_size
        return self._cut(start, end, *(self._end() if self._next >= self._total else (False, 0.0)))

    def _count(self, config: NexmarkConfig) -> int:
        return config.events

    def _load(self, block: int) -> None:
        self._events, self._times = self._generator.block(block)

    def _cut(self, start: int, end: int, finished: bool, wait_seconds: float) -> Read:
        """Return a part of the loaded block."""
        read = Read(self._events[start:end], self._next, finished, wait_seconds)
        return TimedRead(read, self._times[start:end])

    def _end(self) -> tuple[bool, float]:
        """Return whether the split is finished, or else how long to wait, in seconds."""
        if self._linger_until is None:
            self._linger_until = time.monotonic() + self._source.linger_seconds
        left = self._linger_until - time.monotonic()
        return left <= 0, min(max(left, 0.0), 0.05)

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


class _BidColumnsReader(_NexmarkReader):
    """Generates the bids of blocks as Arrow batches."""

    block_size = BIDS_OF_BLOCK

    def _count(self, config: NexmarkConfig) -> int:
        return config.bids

    def _load(self, block: int) -> None:
        self._columns = self._generator.bid_columns(block)

    def _cut(self, start: int, end: int, finished: bool, wait_seconds: float) -> Read:
        columns = self._columns.slice(start, end - start)
        return ColumnarRead(columns, self._next, finished, wait_seconds)
