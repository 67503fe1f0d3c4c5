"""The timers of one operator that are due by event time, or by processing time.

Each timer is a row of a composite table, `(key, time, namespace)`. So timers are keyed state: they
belong to the key group of their key, and snapshots, restores and rescaling treat them as such.

In memory, a heap orders the distinct times, and a dict for each time holds the rows. A row is
registered once, deleted in constant time, and shared with the table.

If there are very many timers, only those before a *horizon* are in memory. The others are rows of
the table, which the state backend may evict. When the time reaches the horizon, the queue reads the
next timers from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

from penstock.snapshot.state import TOMBSTONE, KeyedTable

__all__ = ["TimerQueue", "TimerRow"]

#: A timer: its key, its time in milliseconds, and its namespace.
TimerRow = tuple[Any, int, Any]

#: The value of a row that only the map of changed entries holds. Such a row can be removed without
#: a trace, so timers that fire before the next snapshot cost no deletion.
_FRESH = 1
#: The value of a row of which older levels of the table may have an entry.
_KEPT = 2
#: The smallest number of obsolete times in the heap that is worth a clean-up.
_MANY_OBSOLETE = 1024

_time_of = itemgetter(1)


class TimerQueue:
    """The timers of one operator and one time domain, in the order of their times.

    Timers of the same time fire in the order of their registration, except after a restore.

    Arguments:
        table: the composite table whose entries are the timers.
        entries: returns an iterator over the current entries of the table, in no order.
        max_in_memory: the largest number of timers that are kept in memory.
    """

    def __init__(
        self,
        table: KeyedTable,
        entries: Callable[[], Iterable[tuple[Any, Any]]],
        max_in_memory: int = 1_000_000,
    ) -> None:
        self._table = table
        self._entries = entries
        self._max_in_memory = max_in_memory
        #: A heap of times. It contains all keys of `_rows`, and may contain obsolete times.
        self._times: list[int] = []
        #: The timers in memory, by time. No dict is empty, except that of the time that fires.
        self._rows: dict[int, dict[TimerRow, None]] = {}
        #: The number of timers in memory.
        self._count = 0
        self._shrink_at = max_in_memory
        #: All timers before this time are in memory; None if all timers are in memory.
        self._horizon: int | None = None

    def restore(self) -> None:
        """Read the timers that the restored table contains."""
        self._load(self._entries())

    def register(self, key: Any, namespace: Any, time: int) -> None:
        """Register a timer, unless the same timer is registered already.

        Arguments:
            key: the key of the timer.
            namespace: distinguishes timers of the same key and time.
            time: the time at which the timer fires, in milliseconds.
        """
        row = (key, time, namespace)
        horizon = self._horizon
        if horizon is not None and time >= horizon:
            if row not in self._rows.get(time, ()):
                self._write(row, _KEPT)
            return
        rows = self._rows.get(time)
        if rows is None:
            self._rows[time] = {row: None}
            heappush(self._times, time)
        elif row in rows:
            return
        else:
            rows[row] = None
        self._count += 1
        table = self._table
        if not table.captured and row not in table.dirty:
            table.dirty[row] = _FRESH
        else:
            self._write(row, _FRESH)
        if self._count > self._shrink_at:
            self._shrink()

    def delete(self, key: Any, namespace: Any, time: int) -> None:
        """Delete a timer, if it is registered. Arguments are as for `register`."""
        row = (key, time, namespace)
        rows = self._rows.get(time)
        if rows is not None and row in rows:
            self._forget(row, rows)
            if not rows:
                del self._rows[time]
                if len(self._times) - len(self._rows) > _MANY_OBSOLETE + len(self._rows):
                    self._drop_obsolete_times()
        elif self._horizon is not None and time >= self._horizon:
            self._erase(row)

    def next_time(self) -> int | None:
        """Return the time of the first timer, or None if there is none.

        If no timer is in memory, return a time that no timer of the table precedes.
        """
        times, rows = self._times, self._rows
        while times and not rows.get(times[0]):
            rows.pop(heappop(times), None)
        return times[0] if times else self._horizon

    def advance(self, time: int) -> Iterator[TimerRow]:
        """Remove the timers up to `time` one by one, and yield each before removing the next.

        Timers may be registered and deleted meanwhile. A new timer up to `time` is yielded, too.

        Arguments:
            time: the current time, in milliseconds.
        """
        while True:
            first = self.next_time()
            if first is None or first > time:
                return
            rows = self._rows.get(first)
            if rows is None:
                self._load(self._entries())
                continue
            times = self._times
            for row in tuple(rows):
                if row in rows:  # else it was deleted meanwhile
                    self._forget(row, rows)
                    yield row
                    if self._times is not times or not times or times[0] != first:
                        break  # another time may be the first now

    def clear(self) -> None:
        """Remove all timers."""
        rows = [row for row, _ in self._entries()]
        self._times, self._rows, self._count, self._horizon = [], {}, 0, None
        for row in rows:
            self._erase(row)

    # ---- rows of the table

    def _forget(self, row: TimerRow, rows: dict[TimerRow, None]) -> None:
        del rows[row]
        self._count -= 1
        self._erase(row)

    def _write(self, row: TimerRow, value: int) -> None:
        """Write the row of a timer that older levels of the table may contain."""
        table = self._table
        before = table.dirty.get(row)
        if before is TOMBSTONE or any(row in entries for entries in table.captured):
            value = _KEPT
        if before is None or before is TOMBSTONE:
            table.dirty[row] = value

    def _erase(self, row: TimerRow) -> None:
        """Delete the row of a timer from the table, if it is there."""
        dirty = self._table.dirty
        if dirty.get(row) == _FRESH:
            del dirty[row]
        else:
            dirty[row] = TOMBSTONE

    # ---- the horizon

    def _load(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Read timers from the table, until half of the memory for timers is used.

        No timer may be in memory. The new horizon is the time of the last timer that was read, or
        None if all timers were read.
        """
        most = max(1, self._max_in_memory // 2)
        found: list[TimerRow] = []
        horizon: int | None = None
        for row, _ in entries:
            if horizon is None or row[1] <= horizon:
                found.append(row)
                if len(found) >= 2 * most:
                    found.sort(key=_time_of)
                    del found[most:]
                    horizon = found[-1][1]
        self._rows = {}
        for row in found:
            self._rows.setdefault(row[1], {})[row] = None
        self._times = list(self._rows)
        heapify(self._times)
        self._count = len(found)
        self._horizon = horizon
        self._shrink_at = max(self._max_in_memory, 2 * self._count)

    def _shrink(self) -> None:
        """Remove the latest timers from memory, so that at most half as many remain."""
        self._drop_obsolete_times()
        times, kept = sorted(self._times), 0
        for index, time in enumerate(times):
            kept += len(self._rows[time])
            if kept > self._max_in_memory // 2 and index + 1 < len(times):
                self._horizon = times[index + 1]
                for later in times[index + 1 :]:
                    del self._rows[later]
                del times[index + 1 :]
                break
        self._times, self._count = times, kept
        self._shrink_at = max(self._max_in_memory, 2 * kept)

    def _drop_obsolete_times(self) -> None:
        self._rows = {time: rows for time, rows in self._rows.items() if rows}
        self._times = list(self._rows)
        heapify(self._times)
