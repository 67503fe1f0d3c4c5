"""Reads the splits of an unbounded source in turn.

A split of an unbounded source may never end, so a task cannot wait for its end before it begins the
next one. The task opens every split that it is given at once, each with a reader of its own. The
splits take turns: each read of the task goes to the next split that has records. (Flink: a source
reader that multiplexes its assigned splits, FLIP-27.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.source import SourceReader, Split
from penstock.runtime.operators.source_input import OffloadRead, SequentialSourceInput
from penstock.runtime.system.signal import Signal

__all__ = ["SourceInput", "MultiplexedSourceInput"]


@dataclass(eq=False)
class _OpenSplit:
    """A split, the input that reads it, and the thread that does so if its reader blocks."""

    input: SequentialSourceInput
    signal: Signal
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def pump(self, offload: OffloadRead) -> None:
        with self.scope:
            await self.input.pump(offload, self.signal.wait_for)


class MultiplexedSourceInput:
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
        self._create_reader = create_reader
        self._clock = clock
        self._request = request
        self._wake = wake
        #: The splits that are open, the one that is read next first.
        self._splits: deque[_OpenSplit] = deque()
        #: Those of them whose threads are not started yet.
        self._unstarted: list[_OpenSplit] = []
        #: Made ahead, since only a reader knows whether it blocks.
        self._spare: SourceReader | None = create_reader()
        self.pumping = self._spare.blocking
        self._requested = self._no_more = False

    @property
    def ended(self) -> bool:
        """Return whether all splits are read to their ends and no other will come."""
        return self._no_more and not self._splits

    @property
    def wake_at(self) -> float | None:
        """Return the earliest time at which a split has records again; None if one may have now."""
        times = [split.input.wake_at for split in self._splits]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def restore(self, state: Any) -> None:
        """Open the splits that `snapshot` returned."""
        for id, payload, position in state:
            self._open(Split(id, payload), position)

    def snapshot(self) -> Any:
        """Return the open splits, each with the position after the last emitted batch."""
        return [entry for split in self._splits for entry in split.input.snapshot()]

    def assign(self, split: Split, position: Any) -> None:
        """Open a split that the JobManager gave."""
        self._requested = False
        self._open(split, position)

    def no_more(self) -> None:
        """Note that the JobManager has no more splits."""
        self._no_more = self._requested = True

    def _open(self, split: Split, position: Any) -> None:
        reader, self._spare = self._spare or self._create_reader(), None
        signal = Signal()

        def wake() -> None:
            signal.set()
            self._wake()

        input = SequentialSourceInput(reader, self._clock, lambda: None, wake)
        input.assign(split, position)
        input.no_more()
        opened = _OpenSplit(input, signal)
        self._splits.append(opened)
        if self.pumping:
            self._unstarted.append(opened)
            self._wake()

    def read(self, max_records: int) -> list[Any] | None:
        """Return the next records of the first split that has any, or None if none has any now."""
        if not self._requested:
            self._requested = True
            self._request()
        empty = False
        for _ in range(len(self._splits)):
            split = self._splits.popleft()
            self._splits.append(split)
            records = split.input.read(max_records)
            if split.input.ended:
                self._close_split(self._splits.pop())
            if records:
                return records
            empty = empty or records is not None
        return [] if empty else None

    def _close_split(self, split: _OpenSplit) -> None:
        split.scope.cancel()
        split.input.close()

    async def pump(
        self,
        offload: OffloadRead,
        wait: Callable[[Callable[[], bool], float | None], Awaitable[None]],
    ) -> None:
        """Read each split in threads of its own, one batch ahead.

        Arguments:
            offload: runs a blocking call; abandoned when the job ends.
            wait: waits until a condition holds that `wake` announces.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await wait(lambda: bool(self._unstarted), None)
                while self._unstarted:
                    nursery.start_soon(self._unstarted.pop(0).pump, offload)

    def close(self) -> None:
        """Close all readers, whatever one raises, even while threads are blocked in them."""
        with ExitStack() as stack:
            if self._spare is not None:
                stack.callback(self._spare.close)
            for split in self._splits:
                stack.callback(split.input.close)


SourceInput = SequentialSourceInput | MultiplexedSourceInput
