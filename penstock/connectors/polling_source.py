"""Define `PollingSource`, the base of sources that are polled and have positions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from penstock.dataflow.errors import JobError
from penstock.dataflow.output_tag import SideOutput
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.type_variables import T_co


class SplitPoller(ABC, Generic[T_co]):
    """Reads one split of a `PollingSource`.

    The engine creates a poller, calls `seek`, and then `poll` and `position` in turns. All calls
    come from one thread at a time, except `close`.

    Examples:
        >>> class Numbers(SplitPoller):
        ...     def seek(self, position):
        ...         self.next = position or 0
        ...     def poll(self, max_records):
        ...         first, self.next = self.next, min(self.next + max_records, 3)
        ...         return list(range(first, self.next)) or None
        ...     def position(self):
        ...         return self.next
        >>> poller = Numbers()
        >>> poller.seek(1)
        >>> poller.poll(10), poller.position(), poller.poll(10)
        ([1, 2], 3, None)
    """

    @abstractmethod
    def seek(self, position: Any) -> None:
        """Go to a position, so that `poll` continues there.

        Arguments:
            position: a value that `position` has returned, possibly in another process; None for
                the start of the split.
        """

    @abstractmethod
    def poll(self, max_records: int) -> list[T_co] | None:
        """Return the next records, at most `max_records`; None at the end of the split.

        An empty list means that there are no records now. `poll` is then called again after
        `PollingSource.poll_seconds`.
        """

    @abstractmethod
    def position(self) -> Any:
        """Return the position after the records that `poll` has returned.

        Snapshots contain this position. After a restore, reading from it must return the same
        records again. Allowed types are str, int, float, bool, None, bytes, and lists and dicts of
        these.
        """

    #: A method `timestamp(self, record)` that returns the event time of a record, in milliseconds
    #: since the epoch. None if the source does not know event times.
    timestamp: Callable[[Any], int] | None = None

    def watermark(self) -> int | None:
        """Return the watermark after the records that `poll` has returned, or None.

        Override this method if the source knows how far event time has advanced. The result is in
        milliseconds since the epoch. Later records of the split should have later event times.
        """
        return None

    def snapshot_completed(self, position: Any) -> None:
        """Handle the notice that a snapshot with this position is complete.

        See `SourceReader.snapshot_completed`.
        """

    def take_side_output(self) -> list[SideOutput]:
        """Return the records for side outputs that the last call of `poll` has read.

        They are pairs of a tag and a record. The tags are among `Source.side_output_tags`.
        """
        return []

    def close(self) -> None:
        """Release the resources of the poller. Another thread may be blocked in `poll`."""


class PollingSource(Source[T_co]):
    """A source that returns records when it is polled, and can go back to a position.

    A subclass names its splits, and makes a poller for each. It is sent to the workers, so it holds
    no open connections: pollers open them.

    Attributes:
        blocking: whether `poll` may take long, for example because it waits for a network. Pollers
            then run in threads. A poller that blocks should return the records that it has, before
            it waits for more.
        poll_seconds: the time after which a split without records is polled again, in seconds.
        discovery_seconds: the time after which `splits` is called again to find new splits, in
            seconds. The source then never ends. With None, there are no new splits.
        emits_watermarks: whether the pollers have watermarks.
        bounded: whether every split has an end; see `Source`.

    Examples:
        >>> class Rows(PollingSource):
        ...     def splits(self):
        ...         return ["table"]
        ...     def create_poller(self, split):
        ...         return RowPoller()
        >>> class RowPoller(SplitPoller):
        ...     def seek(self, position):
        ...         self.next = position or 0
        ...     def poll(self, max_records):
        ...         rows = ["a", "b", "c"][self.next : self.next + max_records]
        ...         self.next += len(rows)
        ...         return rows or None
        ...     def position(self):
        ...         return self.next
        >>> list(env.from_source(Rows()).execute_and_collect())
        ['a', 'b', 'c']
    """

    blocking: bool = True
    poll_seconds: float = 0.05
    discovery_seconds: float | None = None

    @property
    def ends(self) -> bool:
        """Whether the source ends: its splits have ends, and there are no new splits later."""
        return self.bounded and self.discovery_seconds is None

    @abstractmethod
    def splits(self) -> Iterable[str | Split]:
        """Return the splits of the source, as ids or with payloads.

        The ids must be the same in every run. The engine calls this method in the JobManager. After
        a restore it calls the method again only if `discovery_seconds` is set.
        """

    @abstractmethod
    def create_poller(self, split: Split) -> SplitPoller[T_co]:
        """Return a poller for a split. It is called in a worker."""

    def snapshot_completed(self, positions: Sequence[tuple[Split, Any]]) -> None:
        """Handle the notice that a snapshot is complete, in the JobManager.

        See `SplitEnumerator.snapshot_completed`.
        """

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of the splits."""
        del parallelism
        return _PollingEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that polls one split at a time."""
        del context
        return _PollingReader(self)


class _PollingReader(SourceReader):
    """Reads splits with the pollers of the source."""

    def __init__(self, source: PollingSource) -> None:
        self.blocking = source.blocking
        self._source = source
        self._poller: SplitPoller | None = None

    def open(self, split: Split, position: Any) -> None:
        self.close()
        source = self._source
        poller = self._poller = source.create_poller(split)
        if type(poller).watermark is not SplitPoller.watermark and not source.emits_watermarks:
            raise JobError(
                f"{type(poller).__name__} has watermarks, and its source has not: set "
                f"emits_watermarks = True in the class {type(source).__name__}"
            )
        poller.seek(position)

    def read(self, max_records: int) -> Read:
        poller, source = self._poller, self._source
        assert poller is not None, "read before open"
        found = poller.poll(max_records)
        records = [] if found is None else found
        if not isinstance(records, list):
            raise JobError(
                f"poll returned a {type(records).__name__}: it must return a list of records, or "
                f"None at the end of the split"
            )
        side_output = poller.take_side_output()
        idle = found is not None and not records and not side_output
        wait = source.poll_seconds if idle else 0.0
        read = Read(records, poller.position(), found is None, wait, side_output)
        watermark = poller.watermark() if source.emits_watermarks else None
        if poller.timestamp is None:
            return read if watermark is None else TimedRead.untimed(read, watermark)
        return TimedRead(read, list(map(poller.timestamp, records)), watermark)

    def snapshot_completed(self, position: Any) -> None:
        if self._poller is not None:
            self._poller.snapshot_completed(position)

    def close(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()


class _PollingEnumerator(SplitEnumerator):
    """Assigns the splits of a source, and finds new ones if `discovery_seconds` is set."""

    def __init__(self, source: PollingSource) -> None:
        self._source = source
        self._left: list[Split] = []
        self._known: set[str] = set()
        self._found_at = float("-inf")

    def start(self) -> None:
        self._discover()

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        seconds = self._source.discovery_seconds
        if not self._left and seconds is not None and time.monotonic() - self._found_at >= seconds:
            self._discover()
        return self._left.pop(0) if self._left else None

    @property
    def exhausted(self) -> bool:
        return self._source.discovery_seconds is None

    def snapshot(self) -> Any:
        left = [[split.id, split.payload] for split in self._left]
        return {"left": left, "known": sorted(self._known)}

    def restore(self, state: Any) -> None:
        self._left = [Split(id, payload) for id, payload in state["left"]]
        self._known = set(state["known"])

    def snapshot_completed(self, positions: Sequence[tuple[Split, Any]]) -> None:
        self._source.snapshot_completed(positions)

    def _discover(self) -> None:
        self._found_at = time.monotonic()
        for found in self._source.splits():
            split = Split(found) if isinstance(found, str) else found
            if split.id not in self._known:
                self._known.add(split.id)
                self._left.append(split)
