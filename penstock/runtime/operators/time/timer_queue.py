"""The timers of one operator that are due by event time, or by processing time.

Each timer is a row of a composite table, `(key, time, namespace)`. So timers are keyed state: they
belong to the key group of their key, and snapshots, restores and rescaling treat them as such.

In memory, a heap orders the distinct times. For each time, there is the row itself, or a dict of
rows if there are several. A row is registered once, deleted in constant time, and shared with the
table.

If there are very many timers, only those before a *horizon* are in memory. The others are rows of
the table, which the state backend may evict. When the time reaches the horizon, the queue reads the
next timers from the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from penstock.snapshot.state import TOMBSTONE, KeyedTable
from penstock.snapshot.state.entries import StateCodec, in_order_of_bytes

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

    Timers of the same time fire in the order of their registration, except after a restore; see
    also `OrderedTimerQueue`.

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
        #: The timers in memory, by time: the timer, or a dict if there are several of this time.
        #: No dict is empty, except that of the time that fires.
        self._rows: dict[int, TimerRow | dict[TimerRow, None]] = {}
        #: The number of timers in memory.
        self._count = 0
        self._shrink_at = max_in_memory
        #: All timers before this time are in memory; None if all timers are in memory.
        self._horizon: int | None = None
        #: For each time whose timers have begun to fire: its dict of rows, and those of the rows
        #: that were not looked at.
        self._begun: dict[int, tuple[dict[TimerRow, None], Iterator[TimerRow]]] = {}

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
        row, by_time = (key, time, namespace), self._rows
        rows = by_time.get(time)
        if self._horizon is not None and time >= self._horizon:
            if rows is None or row not in _listed(rows):
                self._write(row, _KEPT)
            return
        # This runs for each record, so it computes the hash of the row as seldom as possible.
        if rows is None:
            by_time[time] = row
            heappush(self._times, time)
        elif type(rows) is dict:
            before = len(rows)
            rows[row] = None
            if len(rows) == before:
                return
        elif rows == row:
            return
        else:
            by_time[time] = dict.fromkeys((*_listed(rows), row))
        self._count += 1
        table = self._table
        if table.captured:
            self._write(row, _FRESH)
        elif table.dirty.setdefault(row, _FRESH) is TOMBSTONE:
            table.dirty[row] = _KEPT
        if self._count > self._shrink_at:
            self._shrink()

    def delete(self, key: Any, namespace: Any, time: int) -> None:
        """Delete a timer, if it is registered. Arguments are as for `register`."""
        row, by_time = (key, time, namespace), self._rows
        rows = by_time.get(time)
        if rows is None or row not in _listed(rows):
            if self._horizon is not None and time >= self._horizon:
                self._erase(row)
            return
        if type(rows) is dict:
            del rows[row]
        if type(rows) is tuple or not rows:
            del by_time[time]
            if len(self._times) - len(by_time) > _MANY_OBSOLETE + len(by_time):
                self._drop_obsolete_times()
        self._count -= 1
        self._erase(row)

    def next_time(self) -> int | None:
        """Return the time of the first timer, or None if there is none.

        If no timer is in memory, return a time that no timer of the table precedes.
        """
        times, by_time = self._times, self._rows
        while times and not by_time.get(times[0]):
            by_time.pop(heappop(times), None)
        return times[0] if times else self._horizon

    def advance(self, time: int) -> Iterator[TimerRow]:
        """Remove the timers up to `time` one by one, and yield each before removing the next.

        Timers may be registered and deleted meanwhile. A new timer up to `time` is yielded, too.

        Arguments:
            time: the current time, in milliseconds.
        """
        table = self._table
        while (first := self.next_time()) is not None and first <= time:
            times, by_time = self._times, self._rows
            if first not in by_time:
                self._load(self._entries())
                continue
            while times and (first := times[0]) <= time:
                rows = by_time.get(first)
                if type(rows) is dict and rows:
                    yield from self._advance_within(first, rows)
                else:
                    heappop(times)
                    by_time.pop(first, None)
                    if type(rows) is tuple:
                        self._count -= 1
                        if table.dirty.pop(rows, 0) != _FRESH:
                            table.dirty[rows] = TOMBSTONE
                        yield rows
                if self._times is not times:
                    break  # the queue was reorganised meanwhile
        self._begun.clear()

    def _advance_within(self, time: int, rows: dict[TimerRow, None]) -> Iterator[TimerRow]:
        """Remove and yield timers of one time, while this is the first time of the queue.

        When a timer has registered an earlier one, this method ends. The next call continues with
        the remaining rows, so each row is examined once.
        """
        table, times = self._table, self._times
        begun = self._begun.pop(time, None)
        left = begun[1] if begun is not None and begun[0] is rows else self._listed_now(rows)
        for row in left:
            if row in rows:  # else it was deleted meanwhile
                del rows[row]
                self._count -= 1
                if table.dirty.pop(row, 0) != _FRESH:
                    table.dirty[row] = TOMBSTONE
                yield row
                if self._times is not times or not times or times[0] != time:
                    self._begun[time] = rows, left
                    return

    def _listed_now(self, rows: dict[TimerRow, None]) -> Iterator[TimerRow]:
        """Return an iterator over the rows that are there now. Rows may be added meanwhile."""
        return iter(tuple(rows))

    def clear(self) -> list[TimerRow]:
        """Remove all timers, and return them."""
        rows = [row for row, _ in self._entries()]
        self._times, self._rows, self._count, self._horizon = [], {}, 0, None
        self._begun = {}
        for row in rows:
            self._erase(row)
        return rows

    # ---- rows of the table

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
        if dirty.pop(row, 0) != _FRESH:
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
        for time, rows in groupby(sorted(found, key=_time_of), _time_of):
            first, *others = rows
            self._rows[time] = dict.fromkeys((first, *others)) if others else first
        self._times = list(self._rows)  # which is sorted, and so is a heap
        self._count = len(found)
        self._horizon = horizon
        self._shrink_at = max(self._max_in_memory, 2 * self._count)

    def _shrink(self) -> None:
        """Remove the latest timers from memory, so that at most half as many remain."""
        self._drop_obsolete_times()
        times, kept = sorted(self._times), 0
        for index, time in enumerate(times):
            kept += len(_listed(self._rows[time]))
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


class OrderedTimerQueue(TimerQueue):
    """A queue in which timers of the same time fire in the order of their bytes.

    So they fire in the same order after a restore. All timers are kept in memory.

    Arguments:
        table, entries: as for `TimerQueue`.
        codec: encodes timers.
    """

    def __init__(
        self,
        table: KeyedTable,
        entries: Callable[[], Iterable[tuple[Any, Any]]],
        codec: StateCodec,
    ) -> None:
        super().__init__(table, entries, sys.maxsize)
        self._codec = codec

    def _listed_now(self, rows: dict[TimerRow, None]) -> Iterator[TimerRow]:
        return iter(in_order_of_bytes(self._codec, list(rows)))


def _listed(rows: TimerRow | dict[TimerRow, None]) -> Collection[TimerRow]:
    """Return the timers of one time as a collection."""
    return (rows,) if type(rows) is tuple else cast(dict[TimerRow, None], rows)
