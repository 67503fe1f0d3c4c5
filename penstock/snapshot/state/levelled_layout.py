"""The layout of most tables: a snapshot captures and writes the changed entries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.dense_layout import DenseLayout
from penstock.snapshot.state.eager_flush_policy import spread_sample
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.state_layout import StateLayout
from penstock.snapshot.state.table.keyed_table import KeyedTable

# A table becomes dense when this share of its entries changed between two snapshots, or while a
# snapshot was written. `dense_layout.py` explains the costs.
_BEGIN_SHARE = 1 / 4


class LevelledLayout:
    """Captures the dirty map of a table, and decides when the table becomes dense.

    Arguments:
        table: the table.
        codec: the codec, which encodes keys and values.
        settings: the thresholds of the backend.
        was_dense: whether the table was dense until now. Its first captured map then also contains
            entries that did not change.
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
        """Return True, since a table becomes dense only after a snapshot was written."""
        return True

    def capture(self, *, whole: bool) -> CapturedMap | None:
        """Capture the dirty map, and return it, or None if there is no entry to capture.

        Arguments:
            whole: whether to capture all entries, not only the changed ones.
        """
        entries = self.table.seal(whole=whole)
        counts, self._counts_changes = self._counts_changes and not whole, True
        return CapturedMap(self, entries, counts_changes=counts) if entries else None

    def note_written(self, changed: int) -> None:
        """Record that the captured map of a snapshot was written.

        Arguments:
            changed: the number of entries that changed in the interval before the snapshot; 0 if
                this number is not known.
        """
        many = _BEGIN_SHARE * max(1, len(self.table.clean))
        self._mostly_changed = len(self.table.dirty) >= many or changed >= many

    def after_snapshot(self, cold: ColdStore) -> StateLayout:
        """Return a dense layout if enough entries changed, or else this layout.

        A table does not become dense at a barrier, since all changed entries would then be moved.
        After a snapshot was written, only the entries that changed meanwhile are moved.
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
        """Return 0, since this layout holds no values outside of the table."""
        return 0

    def flushable_entries(self) -> int:
        """Return the number of dirty entries of the table."""
        return len(self.table.dirty)

    def may_scan(self, now: float) -> bool:
        """Return False, since a levelled table flushes single entries instead of blocks."""
        del now
        return False

    def flush_blocks(self, now: float) -> Iterator[int | None]:
        """Write no blocks, since a levelled table flushes single entries."""
        del now
        return iter(())

    def announce_snapshot(self) -> None:
        """Do nothing, since a levelled table has no blocks to scan."""


class CapturedMap:
    """The captured map of a levelled table: its changed entries, or all its entries.

    Arguments:
        layout: the layout that captured the map.
        entries: the captured map.
        counts_changes: whether the map contains only changed entries.
    """

    def __init__(
        self, layout: LevelledLayout, entries: dict[object, object], *, counts_changes: bool
    ) -> None:
        self._layout = layout
        self._table = layout.table
        self._entries = entries
        self._counts_changes = counts_changes
        self._flushed: Collection[object] = ()

    @property
    def table_id(self) -> int:
        """The id of the table."""
        return self._table.table_id

    def entries(self) -> dict[object, object]:
        """Return the captured map."""
        return self._entries

    def must_write(self, flushed: object) -> bool:
        """Return whether the key `flushed` has changed again after its eager flush."""
        return flushed in self._entries

    def note_flushed(self, keys: Collection[object]) -> None:
        """Record the keys that were flushed eagerly since the previous snapshot."""
        self._flushed = keys

    def write(self, cold: ColdStore, number: int, timer: SliceTimer) -> Work[None]:
        """Write the captured entries, and remove outdated entries from the cold store."""
        # The table may replace a captured value by its bytes between two slices. So each value is
        # read just before it is written.
        keys, values = iter(self._entries), iter(self._entries.values())
        while chunk := list(islice(keys, cold.chunk_entries(self._table))):
            cold.write(self._table, chunk, list(islice(values, len(chunk))))
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()
        yield from cold.compact(self._table, number, (self._entries, self._flushed), timer)

    def release(self) -> None:
        """Drop the captured map from its table, after all its entries were written."""
        self._table.release_oldest_capture()
        changed = len(self._entries) + self._lasting() if self._counts_changes else 0
        self._layout.note_written(changed)

    def _lasting(self) -> int:
        """Estimate how many of the eagerly flushed keys did not change again."""
        sample = spread_sample(self._flushed)
        lasting = sum(key not in self._entries for key in sample)
        return len(self._flushed) * lasting // max(1, len(sample))

    def abandon(self) -> bool:
        """Return False. The entries must be written, since later maps lack these changes."""
        return False
