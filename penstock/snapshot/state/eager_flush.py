"""Writes dirty entries before the next barrier, to shorten the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from penstock.snapshot.state.eager_flush_policy import EagerFlushPolicy
from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.state_layout import CapturedTable, StateLayout
from penstock.snapshot.state.tables import Tables


class EagerFlusher:
    """Writes dirty entries of one backend between two snapshots.

    The runtime calls `run` while the task has no records, or shortly before a barrier.

    Arguments:
        tables: the tables of the backend.
        storage: the storage to which the entries are written.
        is_interrupted: a function that returns whether a captured snapshot waits to be written. If
            so, the flush stops.
    """

    def __init__(
        self, tables: Tables, storage: LocalStorage, is_interrupted: Callable[[], bool]
    ) -> None:
        self._tables = tables
        self._storage = storage
        self._is_interrupted = is_interrupted
        self._policy = EagerFlushPolicy()

    @property
    def wanted(self) -> bool:
        """Whether `run` would write entries now."""
        return self._allowed() and (bool(self._layouts_to_scan()) or self._many_dirty())

    def _allowed(self) -> bool:
        return self._storage.is_open and not self._is_interrupted() and self._policy.allowed

    def _layouts_to_scan(self) -> Sequence[StateLayout]:
        now = self._storage.slicing.clock()
        return [layout for layout in self._tables.layouts if layout.may_scan(now)]

    def _many_dirty(self) -> bool:
        dirty = sum(layout.flushable_entries() for layout in self._tables.layouts)
        return dirty > self._storage.settings.eager_flush_entries

    def announce_snapshot(self) -> None:
        """Notify all layouts that a snapshot is due soon."""
        for layout in self._tables.layouts:
            layout.announce_snapshot()

    def run(self) -> Work[None]:
        """Write the oldest dirty entries, and mark them as clean.

        The generator yields only None, so the caller may abandon it at any step. It ends when few
        dirty entries are left, or when a snapshot was captured.
        """
        if self._allowed() and (to_scan := self._layouts_to_scan()):
            yield from self._flush_blocks(to_scan[0])
        while self._allowed() and self._many_dirty():
            layout = max(self._tables.layouts, key=lambda layout: layout.flushable_entries())
            table = layout.table
            if not self._policy.may_flush(table.table_id, next(iter(table.dirty))):
                return
            self._policy.note_flushed(table.table_id, self._storage.clean_oldest(table))
            yield None

    def _flush_blocks(self, layout: StateLayout) -> Work[None]:
        for begin in layout.flush_blocks(self._storage.slicing.clock()):
            if begin is not None:
                self._policy.note_flushed(layout.table.table_id, [begin])
            # Yield after each block, so that an arriving record waits for one block at most.
            yield None
            if self._is_interrupted():
                return
        yield None

    def end_interval(self, captured: Sequence[CapturedTable]) -> None:
        """End the interval between two snapshots, and evaluate its eager flushes.

        Arguments:
            captured: the tables that the new snapshot has captured.
        """
        parts = {part.table_id: part for part in captured}

        def must_write(table: int, flushed: Hashable) -> bool:
            return table in parts and parts[table].must_write(flushed)

        for table, keys in self._policy.end_interval(must_write).items():
            if table in parts:
                parts[table].note_flushed(keys)
