"""The tables of one subtask, each with its layout."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from penstock.dataflow.errors import GraphError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.levelled_layout import LevelledLayout
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.state_layout import CapturedTable, StateLayout
from penstock.snapshot.state.table.composite_table import CompositeTable, OrderedCompositeTable
from penstock.snapshot.state.table.keyed_table import ColdReader, KeyedTable

logger = logging.getLogger("penstock")


class Tables:
    """Registers the tables of a backend, in the order of their ids.

    Arguments:
        codec: the codec, which encodes keys and values.
        settings: the thresholds of the backend.
        in_order: whether composite tables list entries in the order of their bytes.
    """

    def __init__(self, codec: StateCodec, settings: StateSettings, in_order: bool = False) -> None:
        self._codec = codec
        self._settings = settings
        self._composite = OrderedCompositeTable if in_order else CompositeTable
        self._readers: list[ColdReader] = []
        #: Whether the operator is still opening, and requests the states that it always needs.
        self._is_opening = True
        #: The names of states that the operator needs, and requests with their first entry.
        self._expected: set[str] = set()
        #: The layout of each table, in the order of the tables' ids.
        self.layouts: list[StateLayout] = []

    def __iter__(self) -> Iterator[KeyedTable]:
        return (layout.table for layout in self.layouts)

    def __len__(self) -> int:
        return len(self.layouts)

    def __getitem__(self, table_id: int) -> KeyedTable:
        return self.layouts[table_id].table

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, in the order of their ids."""
        return tuple(table.name for table in self)

    def table(self, name: str, kind: StateKind) -> KeyedTable:
        """Return the table `name` for the operator, and register it if it is new.

        A restored table keeps its id.

        Raises:
            GraphError: if there is a table of this name and another kind.
        """
        is_late = not self._is_opening and name not in self._expected
        if is_late and name not in self.names:
            self._report_kept(name, kind)
        table = self._table(name, kind)
        if not table.is_requested:
            table.is_requested = True
            table.is_late = is_late
        return table

    def _report_kept(self, name: str, kind: StateKind) -> None:
        """Warn if a new late state may be a renamed state that is restored and not requested."""
        kept = [one.name for one in self if one.kind is kind and not one.is_requested]
        if kept:
            logger.warning(
                "state %r is new, and state %r of the snapshot was not requested yet: if it was "
                "renamed, give the new descriptor aliases=[%r]",
                name,
                kept[0],
                kept[0],
            )

    def declare_restored(self, handle: KeyedHandle, state_id: int, name: str) -> None:
        """Register the table for entries of a snapshot, if it is new.

        Arguments:
            handle: the handle of the keyed state in the snapshot.
            state_id: the id of the state in the handle.
            name: the name of the state.
        """
        table = self._table(name, handle.kind(state_id))
        table.is_restored = True
        table.is_late |= state_id in handle.late
        table.expires = state_id in handle.expiring
        table.version = handle.version(state_id)

    def expect(self, name: str) -> None:
        """Declare a state that the operator needs, and requests with the first entry."""
        self._expected.add(name)

    def end_opening(self) -> None:
        """Note that the operator is open. States that it requests from now on are late."""
        self._is_opening = False

    def rename(self, table: KeyedTable, name: str) -> None:
        """Give a restored table the name that its state has in the program."""
        table.name = name

    def _table(self, name: str, kind: StateKind) -> KeyedTable:
        for table in self:
            if table.name == name:
                if table.kind is not kind:
                    raise GraphError(_other_kind(table, kind))
                return table
        made = self._composite if kind.is_composite else KeyedTable
        table = made(name, len(self.layouts), self._codec, self._settings)
        table.kind = kind
        for reader in self._readers:
            table.attach(reader)
        self.layouts.append(self._levelled(table))
        return table

    def named(self, name: str) -> KeyedTable:
        """Return the table `name`, which must exist."""
        return self[self.names.index(name)]

    def attach(self, reader: ColdReader) -> None:
        """Set the reader that all tables use for entries that are in the database only."""
        self._readers = [reader]
        for table in self:
            table.attach(reader)

    def capture(self, *, whole: bool) -> list[CapturedTable]:
        """Capture all tables at a barrier.

        Arguments:
            whole: whether to capture all entries, not only the changed ones.
        """
        self.layouts = [
            layout if layout.still_pays() else self._levelled(layout.table, was_dense=True)
            for layout in self.layouts
        ]
        captured = (layout.capture(whole=whole) for layout in self.layouts)
        return [part for part in captured if part is not None]

    def after_snapshot(self, cold: ColdStore) -> None:
        """Give each table the layout that is best for it, after a snapshot was written."""
        self.layouts = [layout.after_snapshot(cold) for layout in self.layouts]

    def mark_all_dirty(self) -> None:
        """Mark all entries as dirty, since the database of rows does not hold them."""
        for table in self:
            table.mark_all_dirty()
        self.layouts = [self._levelled(table) for table in self]

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that the entries of all tables take, in bytes."""
        return sum(layout.table.memory_bytes(layout.held_entries()) for layout in self.layouts)

    def _levelled(self, table: KeyedTable, *, was_dense: bool = False) -> LevelledLayout:
        return LevelledLayout(table, self._codec, self._settings, was_dense=was_dense)


def _other_kind(table: KeyedTable, kind: StateKind) -> str:
    if table.is_requested:
        return (
            f"state {table.name!r} is a {kind.value} state, but there is a {table.kind.value} "
            f"state of the same name in the function: give one of them another name"
        )
    return (
        f"state {table.name!r} is a {kind.value} state, and is a {table.kind.value} state in the "
        f"snapshot, whose values it cannot take: give the new state another name"
    )
