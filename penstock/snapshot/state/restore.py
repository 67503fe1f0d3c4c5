"""Restores the keyed state of a snapshot, at the same or at another parallelism.

If a handle covers exactly the key groups of the subtask, its files are linked into the folder of
the new database. Rows then stay in the database until they are looked up. Blocks are loaded into
memory at once. The files must be those of the kind of database that the backend uses.

Otherwise the files are linked into a temporary folder. The rows of the subtask's key groups are
copied from there into an empty database, without decoding their values. The entries of blocks are
loaded into memory.

So a snapshot that was written with RocksDB is restored into SQLite, and the other way. No database
opens the folder of the snapshot itself, since RocksDB would delete files there. This module does
not verify checksums.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.cold.checkpoint import CheckpointFiles
from penstock.snapshot.state.cold.database import StateDatabase
from penstock.snapshot.state.cold.rows import ROW_PREFIX
from penstock.snapshot.state.engines import engine_of, open_files
from penstock.snapshot.state.inline_state import naming_state, unpack_inline
from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.table.keyed_table import KeyedTable
from penstock.snapshot.state.tables import Tables

_ROWS_PER_BATCH = 256
_GROUP = struct.Struct(">H")


class Restorer:
    """Fills the tables of a new backend from the handles of a snapshot.

    Arguments:
        tables: the tables of the backend.
        storage: the storage of the backend.
        groups: the key groups of the subtask.
    """

    def __init__(self, tables: Tables, storage: LocalStorage, groups: range) -> None:
        self._tables = tables
        self._storage = storage
        self._groups = groups

    def restore(self, handles: Sequence[tuple[Path, KeyedHandle]]) -> Work[None]:
        """Restore the state of the subtask's key groups from handles.

        Arguments:
            handles: the handles, each with the folder of its snapshot.

        Raises:
            StoreError: if a file is missing or cannot be read.
        """
        groups = self._groups
        handles = [
            (path, handle)
            for path, handle in handles
            if handle.first_group < groups.stop and groups.start < handle.end_group
        ]
        for _, handle in handles:
            for state_id, state in enumerate(handle.states):
                self._tables.declare_restored(handle, state_id, state)
        stored = [(path, handle) for path, handle in handles if handle.folder is not None]
        if len(handles) == len(stored) == 1 and self._may_link(stored[0][1]):
            yield from self._link(*stored[0])
        else:
            for path, handle in stored:
                yield from self._copy(path, handle)
        for _, handle in handles:
            if handle.inline is not None:
                self._unpack(handle.inline, handle.states)
        if self._storage.cold.is_readable:
            # The entries that were loaded into memory are not in this database of rows yet.
            self._tables.mark_all_dirty()

    def _may_link(self, handle: KeyedHandle) -> bool:
        groups = handle.first_group, handle.end_group
        if groups != (self._groups.start, self._groups.stop):
            return False
        return engine_of(handle.files).name == self._storage.engine.name

    def _link(self, path: Path, handle: KeyedHandle) -> Work[None]:
        storage = self._storage
        folder, shared = storage.folder / "db", storage.shared_memory()
        engine = storage.engine

        def link_and_open() -> StateDatabase:
            storage.files.take_over(path, handle.files, folder)
            return open_files(engine, folder, shared, path / str(handle.folder))

        yield from storage.open_linked(link_and_open, self._tables)

    def _unpack(self, inline: bytes, states: Sequence[str]) -> None:
        storage = self._storage
        decode, group_of = storage.codec.decode_value, storage.row_keys.group
        for state, entries in unpack_inline(storage.codec, inline, states):
            table = self._tables.named(state)
            with naming_state(state):
                table.add_restored(
                    (key, decode(data))
                    for key, data in entries
                    if group_of(key, is_composite=table.is_composite) in self._groups
                )

    def _copy(self, path: Path, handle: KeyedHandle) -> Work[None]:
        """Copy the entries of this subtask from the files of a handle."""
        storage = self._storage
        engine = engine_of(handle.files)
        folder, shared = storage.folder / "source", storage.memory_of(engine)

        def link_and_open() -> StateDatabase:
            CheckpointFiles(folder).take_over(path, handle.files, folder)
            return open_files(engine, folder, shared, path / str(handle.folder))

        source: StateDatabase = yield from storage.slicing.offload(link_and_open)
        if source.holds_blocks():
            yield from self._load_blocks(source, handle)
        else:
            if not storage.is_open:
                yield from storage.open_rows(self._tables)
            yield from self._copy_rows(source, handle)
        yield from storage.slicing.offload(partial(_close_and_remove, source, folder))

    def _load_blocks(self, source: StateDatabase, handle: KeyedHandle) -> Work[None]:
        storage = self._storage
        timer = storage.slicing.timer()
        loaded = [
            KeyedTable(state, table_id, storage.codec, storage.settings)
            for table_id, state in enumerate(handle.states)
        ]
        yield from BlockStore(source, storage.codec, storage.settings).load(loaded, timer)
        group_of = storage.row_keys.group
        for table in loaded:
            entries, target = iter(table.clean.items()), self._tables.named(table.name)
            while chunk := list(islice(entries, _ROWS_PER_BATCH)):
                target.add_restored(
                    (key, value)
                    for key, value in chunk
                    if group_of(key, is_composite=target.is_composite) in self._groups
                )
                if timer.is_over(len(chunk)):
                    yield None
                    timer.restart()

    def _copy_rows(self, source: StateDatabase, handle: KeyedHandle) -> Work[None]:
        database = self._storage.database
        # The id of a state is its position in its handle, so the same state may have another id
        # in this backend.
        table_ids = [self._tables.named(state).table_id for state in handle.states]
        first = max(handle.first_group, self._groups.start)
        end = min(handle.end_group, self._groups.stop)
        timer = self._storage.slicing.timer()
        batch = database.new_batch()
        for row_key, data in source.scan(_GROUP.pack(first), _GROUP.pack(end)):
            group, table_id = ROW_PREFIX.unpack_from(row_key)
            row_key = ROW_PREFIX.pack(group, table_ids[table_id]) + row_key[ROW_PREFIX.size :]
            batch[row_key] = data
            if len(batch) >= _ROWS_PER_BATCH:
                database.write(batch)
                if timer.is_over(_ROWS_PER_BATCH):
                    yield None
                    timer.restart()
                batch = database.new_batch()
        database.write(batch)


def _close_and_remove(database: StateDatabase, folder: Path) -> None:
    database.close()
    shutil.rmtree(folder)
