"""Taking over the keyed state of a snapshot, as it was or at another parallelism.

A handle that covers exactly the key groups of the subtask is linked; if it holds rows no value is
read until it is asked for, and blocks are read whole. Otherwise the rows of the subtask's key
groups are copied, undecoded, out of linked working copies into a fresh database, and the entries
of blocks are taken into memory. The snapshot's own folders are never opened, since RocksDB
would delete files in them. Checksums are not verified here.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state.entries import Work
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.rocksdb.blocks import Blocks
from penstock.snapshot.state.rocksdb.checkpoint import CheckpointFiles
from penstock.snapshot.state.rocksdb.database import (
    RocksStore,
    SharedMemory,
    new_batch,
    no_room_message,
    rocks_recoverability,
)
from penstock.snapshot.state.rocksdb.rows import ROW_PREFIX

if TYPE_CHECKING:
    from penstock.snapshot.state.backend import KeyedBackend

__all__ = ["restore_into"]

ROWS_PER_BATCH = 256


def restore_into(backend: KeyedBackend, handles: Sequence[tuple[Path, KeyedHandle]]) -> Work[None]:
    """Fills a new backend from `handles`, each with the folder of its snapshot.

    Raises:
        StoreError: if a file is missing or can't be read.
    """
    groups = backend.groups
    handles = [
        (path, handle)
        for path, handle in handles
        if handle.first_group < groups.stop and groups.start < handle.end_group
    ]
    for _, handle in handles:
        for state in handle.states:
            backend.table(state)
    stored = [(path, handle) for path, handle in handles if handle.folder is not None]
    if len(handles) == len(stored) == 1 and _covers_exactly(stored[0][1], groups):
        yield from _link(backend, *stored[0])
    else:
        for path, handle in stored:
            yield from _take(backend, path, handle)
    for _, handle in handles:
        if handle.inline is not None:
            _unpack(backend, handle.inline, handle.states)
    if backend.store is not None and backend.blocks is None:
        # What was taken into memory is yet to be written.
        backend.nothing_is_clean()
        backend.enable_cold()


def _covers_exactly(handle: KeyedHandle, groups: range) -> bool:
    return (handle.first_group, handle.end_group) == (groups.start, groups.stop)


def _link(backend: KeyedBackend, path: Path, handle: KeyedHandle) -> Work[None]:
    folder, shared = backend.folder / "db", backend.shared_memory()

    def link_and_open() -> RocksStore:
        backend.files.take_over(path, handle.files, folder)
        return _open(folder, shared, path, handle)

    backend.store = yield from backend.offload(link_and_open)
    if backend.store.holds_blocks():
        backend.blocks = Blocks(backend.store, backend.codec, backend.newest_capture)
        yield from backend.blocks.load(backend.tables, backend.timer())


def _unpack(backend: KeyedBackend, inline: bytes, states: Sequence[str]) -> None:
    decode, groups = backend.codec.decode_value, backend.groups
    for state, pairs in zip(states, msgpack.unpackb(inline), strict=True):
        table = backend.table(state)
        for original, data in pairs:
            key = decode(original)
            if backend.row_keys.group(key) in groups:
                table.clean[key] = decode(data)


def _take(backend: KeyedBackend, path: Path, handle: KeyedHandle) -> Work[None]:
    """Takes what belongs to the subtask out of a handle with files."""
    folder, shared = backend.folder / "source", backend.shared_memory()

    def link_and_open() -> RocksStore:
        CheckpointFiles(folder).take_over(path, handle.files, folder)
        return _open(folder, shared, path, handle)

    source: RocksStore = yield from backend.offload(link_and_open)
    if source.holds_blocks():
        yield from _take_blocks(backend, source, handle)
    else:
        if backend.store is None:
            yield from backend.open_rows()
        yield from _copy_rows(backend, source, handle)

    def close_and_remove() -> None:
        source.close()
        shutil.rmtree(folder)

    yield from backend.offload(close_and_remove)


def _take_blocks(backend: KeyedBackend, source: RocksStore, handle: KeyedHandle) -> Work[None]:
    tables = [KeyedTable(state, index, backend.codec) for index, state in enumerate(handle.states)]
    yield from Blocks(source, backend.codec).load(tables, backend.timer())
    group, groups, timer = backend.row_keys.group, backend.groups, backend.timer()
    for table in tables:
        clean = backend.table(table.name).clean
        entries = iter(table.clean.items())
        while chunk := list(islice(entries, ROWS_PER_BATCH)):
            clean.update((key, value) for key, value in chunk if group(key) in groups)
            if timer.is_over(len(chunk)):
                yield None
                timer.restart()


def _copy_rows(backend: KeyedBackend, source: RocksStore, handle: KeyedHandle) -> Work[None]:
    assert backend.store is not None
    # A state's id is its place in its own handle, so the same state may have another one here.
    table_ids = [backend.table(state).table_id for state in handle.states]
    first = max(handle.first_group, backend.groups.start)
    end = min(handle.end_group, backend.groups.stop)
    timer = backend.timer()
    batch = new_batch()
    for row_key, data in source.rows(first, end):
        group, table_id = ROW_PREFIX.unpack_from(row_key)
        row_key = ROW_PREFIX.pack(group, table_ids[table_id]) + row_key[ROW_PREFIX.size :]
        batch[row_key] = data
        if len(batch) >= ROWS_PER_BATCH:
            backend.store.write(batch)
            if timer.is_over(ROWS_PER_BATCH):
                yield None
                timer.restart()
            batch = new_batch()
    backend.store.write(batch)


def _open(folder: Path, shared: SharedMemory, path: Path, handle: KeyedHandle) -> RocksStore:
    try:
        return RocksStore(folder, shared)
    except Exception as error:
        # rocksdict raises plain exceptions.
        recoverability = rocks_recoverability(error)
        if full := no_room_message(error):
            raise StoreError(full, folder, recoverability=recoverability) from error
        message = f"RocksDB cannot open the state in a snapshot ({error}); use another snapshot"
        raise StoreError(
            message, path / str(handle.folder), recoverability=recoverability
        ) from error
