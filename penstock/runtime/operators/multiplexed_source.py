"""Read the splits of an unbounded source in turns.

A split of an unbounded source may never end, so a task cannot read one split after the other. The
task opens each split as soon as it is assigned, with a separate reader. The splits take turns: each
task opens each split as soon as it is assigned, with a separate reader. The splits take turns: each
read of the task returns records of the next split that has records. (Flink: a source reader that
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.event_time.source_watermarks import SourceWatermarks
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.operators.split_reader import (
    OffloadRead,
    SplitReader,
    Wait,
    make_split_reader,
)
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.system.signal import Signal

__all__ = ["MultiplexedSourceInput"]


@dataclass(eq=False)
class _OpenSplit:
    """An open split with its reader, and the pump that runs if the reader blocks."""

    split: Split
    reader: SplitReader
    signal: Signal
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def pump(self, offload: OffloadRead) -> None:
        with self.scope:
            await self.reader.pump(offload, self.signal.wait_for)

    def close(self) -> None:
        self.scope.cancel()
        self.reader.close()


class MultiplexedSourceInput(SourceInput):
    """The splits of one task of an unbounded source.

    Arguments:
        create_reader: a function that creates a reader. It is called once for each split.
        clock: a function that returns the time in seconds.
        request: a function that requests a split from the JobManager. It is called again only after
            an answer.
        wake: a function that wakes the task. It is called when the task has something to do.
    """

    def __init__(
        self,
        create_reader: Callable[[], SourceReader],
        clock: Callable[[], float],
        request: Callable[[], None],
        wake: Callable[[], None],
        watermarks: SourceWatermarks | None = None,
    ) -> None:
        super().__init__(request, watermarks)
        self._create_reader = create_reader
        self._clock = clock
        self._wake = wake
        #: The open splits. The next read begins with the first split of the queue.
        self._splits: deque[_OpenSplit] = deque()
        #: The open splits whose pumps are not started yet.
        self._unstarted: list[_OpenSplit] = []
        #: A reader for the next split. The first one is created early, to find out whether the
        #: source's readers block.
        self._spare: SourceReader | None = create_reader()
        self.pumping = self._spare.blocking

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no more splits will come."""
        return self._no_more and not self._splits

    @property
    def wake_at(self) -> float | None:
        """Return the earliest time at which a split has records again, in seconds.

        Return None if a split may have records now, or if there is no split.
        """
        times = [split.reader.wake_at for split in self._splits]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def snapshot(self) -> list[list[Any]]:
        """Return the id, the payload and the position of each open split.

        The position is behind the last batch that the task has emitted.
        """
        return [
            [open.split.id, open.split.payload, open.reader.snapshot_position()]
            for open in self._splits
        ]

    def read(self, max_records: int) -> RecordBatch | None:
        """Read the next split that has records, and return the records.

        Returns:
            None if no split has records now. The list is empty if a reader was called and returned
            no records.
        """
        self._request_split()
        empty = False
        for _ in range(len(self._splits)):
            split = self._splits.popleft()
            self._splits.append(split)
            batch = split.reader.read(max_records)
            if split.reader.split is None:
                self._splits.pop().close()
            if batch:
                return batch
            empty = empty or batch is not None
        return EMPTY if empty else None

    def _add(self, split: Split, position: Any) -> None:
        reader, self._spare = self._spare or self._create_reader(), None
        signal = Signal()

        def wake() -> None:
            signal.set()
            self._wake()

        opened = _OpenSplit(
            split, make_split_reader(reader, self._clock, wake, self.watermarks), signal
        )
        opened.reader.open(split, position)
        self._splits.append(opened)
        if self.pumping:
            self._unstarted.append(opened)
            self._wake()

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read each split in threads, one batch ahead of the task, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await wait(lambda: bool(self._unstarted), None)
                while self._unstarted:
                    nursery.start_soon(self._unstarted.pop(0).pump, offload)

    def close(self) -> None:
        """Close all readers, even if one of them raises an error or blocks a thread."""
        with ExitStack() as stack:
            if self._spare is not None:
                stack.callback(self._spare.close)
            for split in self._splits:
                stack.callback(split.reader.close)
