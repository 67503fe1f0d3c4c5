"""Keeps the entries and remembered keys of a backend within its memory budget."""

from __future__ import annotations

from collections.abc import Callable

from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.tables import Tables

# An upper estimate of the entries that an operator adds for one batch of records.
_BATCH_ENTRIES = 4096
_MAX_SKIPPED_CHECKS = 64
# Eviction stops when the entries take this share of their limit.
_TARGET_SHARE = 3 / 4


class MemoryBudget:
    """Reports when a backend exceeds its memory budget, and evicts entries.

    Arguments:
        budget_bytes: the memory for entries, for remembered keys, and for the backend's share of
            the database's cache, in bytes. At least half is left for entries and keys.
        tables: the tables of the backend.
        storage: the storage of the backend, which holds the evicted entries.
    """

    def __init__(self, budget_bytes: int, tables: Tables, storage: LocalStorage) -> None:
        self.budget_bytes = budget_bytes
        self._tables = tables
        self._storage = storage
        # The number of calls of `check` that may skip the measurement.
        self._skipped_checks = 0

    def used_bytes(self) -> int:
        """Return an estimate of the memory that entries and remembered keys take, in bytes."""
        return self._storage.cold.memory_bytes() + self._tables.memory_bytes()

    def limit_bytes(self) -> int:
        """Return how many bytes entries and remembered keys may take together."""
        share = self._storage.share_bytes()
        return max(self.budget_bytes // 2, self.budget_bytes - share)

    def is_exceeded(self) -> bool:
        """Return whether entries and remembered keys take more memory than their limit."""
        return self.used_bytes() > self.limit_bytes()

    def check(self) -> bool:
        """Return whether the budget is exceeded. Call it once for each batch of records."""
        if self._skipped_checks:
            self._skipped_checks -= 1
            return False
        room = self.limit_bytes() - self.used_bytes()
        if room < 0:
            return True
        # Measuring the memory costs as much as processing a record. So the measurement is skipped
        # for the number of batches that surely fit into the remaining memory.
        entry = max((table.size.memory_bytes() for table in self._tables), default=1)
        self._skipped_checks = min(_MAX_SKIPPED_CHECKS, int(room / (_BATCH_ENTRIES * entry)))
        return False

    def evict(self, is_interrupted: Callable[[], bool]) -> Work[None]:
        """Evict entries until they take three quarters of their limit.

        Clean entries are evicted first. When no clean entry is left, dirty entries are written and
        then evicted.

        Arguments:
            is_interrupted: a function that returns whether a snapshot was captured. Eviction then
                ends early, since the snapshot must be written first.
        """
        if not self.is_exceeded() or is_interrupted():
            return
        tables, storage = self._tables, self._storage
        if not storage.cold.is_readable:
            # All entries become dirty before the database is replaced. So a snapshot that is
            # captured during the replacement contains all entries.
            tables.mark_all_dirty()
            yield from storage.open_rows(tables)
        timer = storage.slicing.timer()
        most = storage.settings.max_slice_entries
        while not is_interrupted() and self.used_bytes() > self.limit_bytes() * _TARGET_SHARE:
            largest = max(tables, key=lambda table: len(table.clean))
            evicted = len(largest.evict(most // 16))
            if not evicted:
                dirtiest = max(tables, key=lambda table: len(table.dirty))
                if not storage.clean_oldest(dirtiest):
                    storage.cold.free_memory()
                    return
                evicted = most
            if timer.is_over(evicted):
                yield None
                timer.restart()
