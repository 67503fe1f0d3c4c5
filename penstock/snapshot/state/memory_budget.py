"""Keeps the entries and remembered keys of a backend within its memory budget."""

from __future__ import annotations

from collections.abc import Callable

from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.tables import Tables

__all__ = ["MemoryBudget"]

# A batch rarely has more records, and an operator rarely stores more than one entry for each.
_BATCH_ENTRIES = 4096
_MAX_SKIPPED_CHECKS = 64
# Eviction stops at this share of the budget.
_TARGET_SHARE = 3 / 4


class MemoryBudget:
    """Reports when a backend uses too much memory, and evicts entries.

    Arguments:
        budget_bytes: for entries in memory, remembered keys, and the share of RocksDB's cache. At
            least half of it is left to entries.
        tables: the tables of the backend.
        storage: where evicted entries are stored.
    """

    def __init__(self, budget_bytes: int, tables: Tables, storage: LocalStorage) -> None:
        self.budget_bytes = budget_bytes
        self._tables = tables
        self._storage = storage
        # Number of calls of `check` that may be answered without measuring.
        self._skipped_checks = 0

    def used_bytes(self) -> int:
        """Return an estimate of the memory that entries and remembered keys take, in bytes."""
        return self._storage.cold.memory_bytes() + self._tables.memory_bytes()

    def limit_bytes(self) -> int:
        """Return the part of the budget that they may take, in bytes."""
        share = self._storage.share_bytes()
        return max(self.budget_bytes // 2, self.budget_bytes - share)

    def is_exceeded(self) -> bool:
        """Return whether they take more than that."""
        return self.used_bytes() > self.limit_bytes()

    def check(self) -> bool:
        """Return whether the budget is exceeded; call it once for each batch of records."""
        if self._skipped_checks:
            self._skipped_checks -= 1
            return False
        room = self.limit_bytes() - self.used_bytes()
        if room < 0:
            return True
        # Measuring costs as much as a record. This number of batches can't fill the room left.
        entry = max((table.size.memory_bytes() for table in self._tables), default=1)
        self._skipped_checks = min(_MAX_SKIPPED_CHECKS, int(room / (_BATCH_ENTRIES * entry)))
        return False

    def evict(self, is_interrupted: Callable[[], bool]) -> Work[None]:
        """Bring memory back to three quarters of the budget.

        Evict clean entries. When there are none left, write dirty ones and evict them.

        Arguments:
            is_interrupted: returns whether a snapshot was captured, which must be written first.
        """
        if not self.is_exceeded() or is_interrupted():
            return
        tables, storage = self._tables, self._storage
        if not storage.cold.is_readable:
            # Before the database is replaced, so that a snapshot captured meanwhile is whole.
            tables.mark_all_dirty()
            yield from storage.open_rows(tables)
        timer = storage.slicing.timer()
        most = storage.settings.max_slice_entries
        while not is_interrupted() and self.used_bytes() > self.limit_bytes() * _TARGET_SHARE:
            largest = max(tables, key=lambda table: len(table.clean))
            evicted = largest.evict(most // 16)
            if not evicted:
                dirtiest = max(tables, key=lambda table: len(table.dirty))
                if not storage.clean_oldest(dirtiest):
                    storage.cold.free_memory()
                    return
                evicted = most
            if timer.is_over(evicted):
                yield None
                timer.restart()
