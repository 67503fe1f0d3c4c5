"""Removes expired values of a state step by step, while the state is used.

A *round* looks at all entries of the table once: first at those in memory, then at the rows of
RocksDB. It begins again when a quarter of the time to live has passed. A step looks at a few
hundred entries, and is taken after every 64 accesses. (Flink: incremental cleanup, and the
compaction filter of RocksDB.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from penstock.dataflow.state import StateTtlConfig
from penstock.snapshot.state import MARKS, MISSING, KeyedBackend, KeyedTable

#: The number of accesses between two steps.
ACCESSES_PER_STEP = 64
# A round ends when this share of the time to live has passed, at the earliest.
_ROUND_SHARE = 1 / 4
# The keys in memory are listed in parts, as it takes some milliseconds to list all of them.
_LISTED_KEYS = 1 << 16
_ROWS_PER_PAGE = 256


class ExpiryCleanup:
    """Removes the expired values of one table.

    Arguments:
        backend: the operator's keyed state.
        table: the table. Its values are pairs (value, time of the last use).
        config: when values expire, and how they are removed.
        now_ms: returns the time of the clock, in milliseconds since the epoch.
    """

    def __init__(
        self,
        backend: KeyedBackend,
        table: KeyedTable,
        config: StateTtlConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._table = table
        self._ttl = config.ttl_ms
        self._now = now_ms
        incremental = config.cleanup.get_incremental_cleanup_strategy()
        rows = config.cleanup.get_rocksdb_compact_filter_cleanup_strategy()
        self._step_entries = incremental.cleanup_size * ACCESSES_PER_STEP if incremental else 0
        self._reads_rows = rows is not None
        period = rows.periodic_compaction_ms if rows else None
        self._period = period or max(1, int(config.ttl_ms * _ROUND_SHARE))
        self._next_round = now_ms() + self._period
        self._round: Iterator[None] | None = None
        #: Whether a step is also taken for a batch in which the state is not used.
        self.every_record = incremental is not None and incremental.every_record

    @property
    def is_enabled(self) -> bool:
        """Whether there is anything to do in the background."""
        return self._step_entries > 0 or self._reads_rows

    def step(self) -> None:
        """Look at the next entries of a round, or begin a round if one is due."""
        if self._round is None:
            now = self._now()
            if now < self._next_round:
                return
            self._next_round = now + self._period
            self._round = self._entries()
        if next(self._round, self) is self:
            self._round = None

    def _entries(self) -> Iterator[None]:
        """Check all entries, and yield after each step."""
        table = self._table
        if self._step_entries:
            for name in ("clean", "dirty"):
                # Entries that are added during the round have not expired yet. The last part is
                # the first, since entries that are removed move those behind them.
                end = len(getattr(table, name))
                for begin in reversed(range(0, end, _LISTED_KEYS)):
                    # A barrier replaces the table's dicts, so each part gets the dict again.
                    last = min(begin + _LISTED_KEYS, end)
                    keys = list(islice(getattr(table, name), begin, last))
                    for first in range(0, len(keys), self._step_entries):
                        for key in keys[first : first + self._step_entries]:
                            self._check(key, table.hot_value(key))
                        yield
        cursor: bytes | None = b"" if self._reads_rows and table.has_cold else None
        while cursor is not None:
            page, cursor = self._backend.cold_page(table, cursor, _ROWS_PER_PAGE)
            for key, value in page:
                newest = table.hot_value(key)
                self._check(key, value if newest is MISSING else newest)
            yield

    def has_expired(self, key: Any, stored: Any) -> bool:
        """Return whether a stored entry has expired.

        Arguments:
            key: the key of the entry.
            stored: its value, a mark, or `MISSING`.
        """
        if stored is MISSING or type(stored) in MARKS:
            return False
        if self._table.kind.is_list and key[-1] is None:
            return False  # the bounds of a list, which never expire
        return bool(stored[1] + self._ttl <= self._now())

    def _check(self, key: Any, stored: Any) -> None:
        """Delete an entry if its value has expired."""
        if self.has_expired(key, stored):
            self._table.delete(key)
            if self._table.kind.is_list:
                self._shrink(key)

    def _shrink(self, key: Any) -> None:
        """Move the bounds of a list past an element that was removed at one of its ends."""
        table, head, index = self._table, key[:-1], key[-1]
        bounds: Any = table.get((*head, None), (0, 0))
        begin, end = bounds
        if index not in (begin, end - 1):
            return
        while begin < end and table.get((*head, begin)) is MISSING:
            begin += 1
        while begin < end and table.get((*head, end - 1)) is MISSING:
            end -= 1
        if begin < end:
            table.dirty[(*head, None)] = (begin, end)
        else:
            table.delete((*head, None))
