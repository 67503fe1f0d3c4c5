"""Read the splits of an unbounded source in turns.

A split of an unbounded source may never end, so a task cannot wait for its end before it begins the
next one. The task opens every split that it is assigned at once, each with a reader of its own. The
splits take turns: each read of the task goes to the next split that has records. (Flink: a source
reader that multiplexes its assigned splits, FLIP-27.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.operators.split_reader import OffloadRead, SplitReader, Wait
from penstock.runtime.system.signal import Signal

__all__ = ["MultiplexedSourceInput"]


@dataclass(eq=False)
class _OpenSplit:
    """A split, with the pump that reads it if its reader blocks."""

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
        create_reader: makes a reader; called once for each split.
        clock: seconds.
        request: asks the JobManager for a split; called again only after an answer.
        wake: called when the task has something to do.
    """

    def __init__(
        self,
        create_reader: Callable[[], SourceReader],
        clock: Callable[[], float],
        request: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(request)
        self._create_reader = create_reader
        self._clock = clock
        self._wake = wake
        #: The open splits; the one that is read next is the first.
        self._splits: deque[_OpenSplit] = deque()
        #: Those of them whose pumps are not started yet.
        self._unstarted: list[_OpenSplit] = []
        #: Made ahead of its split, since only a reader knows whether it blocks.
        self._spare: SourceReader | None = create_reader()
        self.pumping = self._spare.blocking

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no other will come."""
        return self._no_more and not self._splits

    @property
    def wake_at(self) -> float | None:
        """Return the earliest time at which a split has records again; None if one may have now."""
        times = [split.reader.wake_at for split in self._splits]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def snapshot(self) -> list[list[Any]]:
        """Return the open splits, each with the position behind the last emitted batch."""
        return [[open.split.id, open.split.payload, open.reader.position] for open in self._splits]

    def read(self, max_records: int) -> list[Any] | None:
        """Return the next records of the first split that has any, or None if none has any now."""
        self._request_split()
        empty = False
        for _ in range(len(self._splits)):
            split = self._splits.popleft()
            self._splits.append(split)
            records = split.reader.read(max_records)
            if split.reader.split is None:
                self._splits.pop().close()
            if records:
                return records
            empty = empty or records is not None
        return [] if empty else None

    def _add(self, split: Split, position: Any) -> None:
        reader, self._spare = self._spare or self._create_reader(), None
        signal = Signal()

        def wake() -> None:
            signal.set()
            self._wake()

        opened = _OpenSplit(split, SplitReader(reader, self._clock, wake), signal)
        opened.reader.open(split, position)
        self._splits.append(opened)
        if self.pumping:
            self._unstarted.append(opened)
            self._wake()

    async def pump(self, offload: OffloadRead, wait: Wait) -> None:
        """Read each split in threads of its own, one batch ahead of the task."""
        async with trio.open_nursery() as nursery:
            while True:
                await wait(lambda: bool(self._unstarted), None)
                while self._unstarted:
                    nursery.start_soon(self._unstarted.pop(0).pump, offload)

    def close(self) -> None:
        """Close all readers, even if one raises, and while threads are blocked in them."""
        with ExitStack() as stack:
            if self._spare is not None:
                stack.callback(self._spare.close)
            for split in self._splits:
                stack.callback(split.reader.close)
