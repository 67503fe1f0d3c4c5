"""The state of one subtask as it was at a barrier, and the work of writing it.

Invariants:

* The snapshots of a backend are written strictly in order. The files of a snapshot are linked
  before any later change is written to the database.
* The entries of an aborted snapshot are also written, because later snapshots contain only later
  changes. Only the checkpoint of the aborted snapshot is skipped.
* Captured maps stay in their tables until all of them are written. So writing may stop at any step
  and begin again from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.handles import KeyedHandle, SnapshotBytes
from penstock.snapshot.state.early_checkpoint import EarlyCheckpoint
from penstock.snapshot.state.inline_state import pack_inline
from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.state_layout import CapturedTable
from penstock.snapshot.state.table.keyed_table import KeyedTable
from penstock.snapshot.state.tables import Tables


class StateSnapshotWriter:
    """Writes the state snapshots of one backend, one after the other.

    Arguments:
        tables: the tables of the backend.
        storage: the storage to which the entries are written.
        early: the object that prepares the checkpoints of announced snapshots.
        groups: the key groups of the subtask.
        inline_threshold: the largest packed size of a state that is stored in its handle, in bytes.
    """

    def __init__(
        self,
        tables: Tables,
        storage: LocalStorage,
        early: EarlyCheckpoint,
        groups: range,
        inline_threshold: int,
    ) -> None:
        self._tables = tables
        self._storage = storage
        self._early = early
        self._groups = groups
        self._inline_threshold = inline_threshold
        self._pending: deque[StateSnapshot] = deque()

    def add(self, number: int, captured: Sequence[CapturedTable]) -> StateSnapshot:
        """Create snapshot `number` of the captured tables, and add it to the pending snapshots."""
        snapshot = StateSnapshot(self, number, tuple(self._tables), captured)
        self._pending.append(snapshot)
        return snapshot

    def is_busy(self) -> bool:
        """Return whether a snapshot is captured, but not written yet."""
        return bool(self._pending)

    def is_pending(self, snapshot: StateSnapshot) -> bool:
        """Return whether `snapshot` is not written yet."""
        return snapshot in self._pending

    def write(
        self, snapshot: StateSnapshot, target: Path | None
    ) -> Work[tuple[KeyedHandle, SnapshotBytes] | None]:
        """Write the oldest pending snapshot, as `StateSnapshot.write` describes."""
        if not self._pending or self._pending[0] is not snapshot:
            message = f"the state of snapshot {snapshot.number} is written out of order or twice"
            raise ProtocolError(message)
        inline: bytes | None = None
        if not self._storage.is_open and not snapshot.aborted:
            inline = yield from self._pack(snapshot)
            if inline is None and not snapshot.aborted:
                try:
                    yield from self._storage.open_blocks()
                except Exception:
                    # All entries are still in memory, and the next snapshot captures all of them.
                    yield from self._write_tables(snapshot)
                    self._pending.popleft()
                    raise
        yield from self._write_tables(snapshot)
        result = None
        try:
            if not snapshot.aborted:
                result = yield from self._handle(snapshot, inline, target)
            else:
                yield from self._storage.discard_early()
        except Exception:
            # The entries are written, so later snapshots can succeed. Only this one has failed.
            self._pending.popleft()
            raise
        self._pending.popleft()
        return None if snapshot.aborted else result

    def _pack(self, snapshot: StateSnapshot) -> Work[bytes | None]:
        return pack_inline(
            self._tables,
            len(snapshot.tables),
            snapshot.captured,
            self._storage.codec,
            self._inline_threshold,
            self._storage.slicing.timer(),
            lambda: snapshot.aborted,
        )

    def _write_tables(self, snapshot: StateSnapshot) -> Work[None]:
        storage = self._storage
        timer = storage.slicing.timer()
        for part in snapshot.captured:
            yield from part.write(storage.cold, snapshot.number, timer)
        snapshot.release()
        self._tables.after_snapshot(storage.cold)
        self._early.snapshot_written()
        storage.cold.end_interval()

    def _handle(
        self, snapshot: StateSnapshot, inline: bytes | None, target: Path | None
    ) -> Work[tuple[KeyedHandle, SnapshotBytes]]:
        tables = snapshot.tables
        handle = partial(
            KeyedHandle,
            self._groups.start,
            self._groups.stop,
            tuple(table.name for table in tables),
            kinds=tuple(table.kind for table in tables),
            expiring=tuple(table.table_id for table in tables if table.expires),
            late=tuple(table.table_id for table in tables if table.is_late),
            versions=tuple(
                (table.table_id, table.version) for table in tables if table.version != 1
            ),
        )
        if inline is not None:
            return handle(inline=inline), SnapshotBytes(new=len(inline))
        if target is None or not self._storage.is_open:
            raise ProtocolError(f"snapshot {snapshot.number} needs a folder for its files")
        files, size = yield from self._storage.checkpoint(target)
        return handle(folder=target.name, files=files), size


class StateSnapshot:
    """The captured state of one subtask. The runtime drives `write` to its end.

    Arguments:
        writer: the writer of the snapshot.
        number: the number of the snapshot.
        tables: the tables that existed at the barrier, in the order of their ids.
        captured: the captured part of each table that changed.
    """

    def __init__(
        self,
        writer: StateSnapshotWriter,
        number: int,
        tables: tuple[KeyedTable, ...],
        captured: Sequence[CapturedTable],
    ) -> None:
        self.number = number
        self.tables = tables
        self.captured = captured
        self.aborted = False
        self._writer = writer

    @property
    def over(self) -> bool:
        """Whether writing this snapshot has ended, with or without success."""
        return not self._writer.is_pending(self)

    def abort(self) -> None:
        """Abort the snapshot, so that `write` makes no checkpoint.

        The caller must still drive `write` to its end. If `write` has already made the folder, the
        caller removes the folder.
        """
        self.aborted = True
        self.captured = [part for part in self.captured if not part.abandon()]

    def release(self) -> None:
        """Drop the captured entries, after all of them were written."""
        captured, self.captured = self.captured, ()
        for part in captured:
            part.release()

    def write(self, target: Path | None) -> Work[tuple[KeyedHandle, SnapshotBytes] | None]:
        """Write the captured state. `slices.Work` describes how to drive the generator.

        Arguments:
            target: the folder to make for the files. Its parent must exist. The folder itself may
                exist only if it was announced. `target` may be None if the snapshot is aborted.

        Returns:
            The handle and the numbers of new and linked bytes, or None if the snapshot is aborted.

        Raises:
            ProtocolError: if an older snapshot is not written yet, or this snapshot is already
                written.
            StoreError, OSError: if the files cannot be written. If `over` is true afterwards, the
                backend can still be used. Otherwise the database has failed, and no more writes are
                possible.
        """
        return self._writer.write(self, target)
