"""The layout of most tables: a snapshot captures and writes the entries that changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from penstock.snapshot.state.cold_store import ColdStore
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.layout.dense_layout import DenseLayout
from penstock.snapshot.state.layout.state_layout import StateLayout
from penstock.snapshot.state.preparation.eager_flush_policy import spread_sample
from penstock.snapshot.state.rocksdb.block_store import BlockStore
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import SliceTimer, Work

__all__ = ["LevelledLayout"]

# A table becomes dense when this share of its entries changed between two snapshots, or while one
# was written. `dense_layout` explains the costs.
_BEGIN_SHARE = 1 / 4


class LevelledLayout:
    """Captures the dirty map of a table.

    Arguments:
        table: the table.
        codec: encodes keys and values.
        settings: thresholds of the backend.
        was_dense: the table was dense until now, so its first map holds entries that did not
            change.
    """

    def __init__(
        self,
        table: KeyedTable,
        codec: StateCodec,
        settings: StateSettings,
        *,
        was_dense: bool = False,
    ) -> None:
        self.table = table
        self._codec = codec
        self._settings = settings
        self._counts_changes = not was_dense
        self._mostly_changed = False

    def still_pays(self) -> bool:
        """Return True: a table becomes dense only after a snapshot is written."""
        return True

    def capture(self, *, whole: bool) -> CapturedMap | None:
        """Seal the dirty map; None if it is empty."""
        entries = self.table.seal(whole=whole)
        counts, self._counts_changes = self._counts_changes and not whole, True
        return CapturedMap(self, entries, counts_changes=counts) if entries else None

    def note_written(self, changed: int) -> None:
        """Note that the map of a snapshot is written.

        Arguments:
            changed: how many entries had changed in its interval; 0 if that is not known.
        """
        many = _BEGIN_SHARE * max(1, len(self.table.clean))
        self._mostly_changed = len(self.table.dirty) >= many or changed >= many

    def after_snapshot(self, cold: ColdStore) -> StateLayout:
        """Return a dense layout if that pays.

        It is not made at a barrier, where all changed entries would have to be moved. Now only
        those have to be moved that changed while the snapshot was written.
        """
        mostly_changed, self._mostly_changed = self._mostly_changed, False
        table = self.table
        if not mostly_changed or not table.only_immutable or table.captured:
            return self
        if not isinstance(cold, BlockStore) or len(table.clean) > self._settings.max_dense_entries:
            return self
        table.merge_levels()
        return DenseLayout(table, cold, self._codec, self._settings)

    def held_entries(self) -> int:
        """Return 0: all values are in the table."""
        return 0

    def flushable_entries(self) -> int:
        """Return how many entries are dirty."""
        return len(self.table.dirty)

    def may_scan(self, now: float) -> bool:
        """Return False: entries are flushed one by one."""
        del now
        return False

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write nothing: entries are flushed one by one."""
        del now
        return iter(())

    def announce_snapshot(self) -> None:
        """Do nothing: there is nothing to scan."""


class CapturedMap:
    """The entries of a table that changed before a barrier, or all of them.

    Arguments:
        layout: captured them.
        entries: the captured map of its table.
        counts_changes: whether the map holds changed entries only.
    """

    def __init__(
        self, layout: LevelledLayout, entries: dict[Any, Any], *, counts_changes: bool
    ) -> None:
        self._layout = layout
        self._table = layout.table
        self._entries = entries
        self._counts_changes = counts_changes
        self._flushed: Collection[Any] = ()

    @property
    def table_id(self) -> int:
        """The number of the table."""
        return self._table.table_id

    def entries(self) -> dict[Any, Any]:
        """Return the captured map."""
        return self._entries

    def must_write(self, flushed: Any) -> bool:
        """Return whether a key that was flushed eagerly has changed again."""
        return flushed in self._entries

    def note_flushed(self, keys: Collection[Any]) -> None:
        """Note which keys were flushed eagerly since the snapshot before."""
        self._flushed = keys

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write the entries, then remove those of the cold store that are outdated."""
        # A value may be replaced by its bytes between two slices, so it is read late.
        keys, values = iter(self._entries), iter(self._entries.values())
        while chunk := list(islice(keys, cold.chunk_entries(self._table))):
            cold.write(self._table, chunk, list(islice(values, len(chunk))))
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()
        yield from cold.compact(self._table, number, (self._entries, self._flushed), timer)

    def release(self) -> None:
        """Drop the captured map."""
        self._table.release_oldest_capture()
        changed = len(self._entries) + self._lasting() if self._counts_changes else 0
        self._layout.note_written(changed)

    def _lasting(self) -> int:
        """Return about how many keys that were flushed eagerly did not change again."""
        sample = spread_sample(self._flushed)
        lasting = sum(key not in self._entries for key in sample)
        return len(self._flushed) * lasting // max(1, len(sample))

    def abandon(self) -> bool:
        """Return False: later maps hold only what changed since."""
        return False
