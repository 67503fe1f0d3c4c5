"""The state of one subtask as it was at one barrier, and the slow work of writing it.

Invariants: captures of a backend are written strictly in order, and one is over only when its
files are linked, so that no later epoch enters RocksDB before. An aborted capture's maps are
written all the same (newer maps hold only what changed since), only the checkpoint is skipped.
The maps leave the captured level once all of them are written; until then they shadow what is
written, and giving up half-way harms nothing: writing again starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.metadata.handles import KeyedHandle, SnapshotBytes
from penstock.snapshot.state.dense_table import BEGIN_SHARE, Positions
from penstock.snapshot.state.entries import Work, encode_entries
from penstock.snapshot.state.keyed_table import KeyedTable

if TYPE_CHECKING:
    from penstock.snapshot.state.backend import KeyedBackend

__all__ = ["StateSnapshot"]

# What msgpack adds to an inline entry: a list and two byte strings.
INLINE_ENTRY_BYTES = 6


class StateSnapshot:
    """What `KeyedBackend.capture` returns; the runtime drives `write` to its end.

    Arguments:
        backend: whose state it is.
        number: number of the snapshot.
        maps: the captured map of each table that has one.
        lists: of each table with one level, where its entries are, and the captured values.
        turnover: tables of whose maps the size tells how much changes between two captures.
    """

    def __init__(
        self,
        backend: KeyedBackend,
        number: int,
        maps: list[tuple[KeyedTable, dict[Any, Any]]],
        lists: list[tuple[KeyedTable, Positions, list[Any]]],
        turnover: Container[KeyedTable],
    ) -> None:
        self.number = number
        self.aborted = False
        self._backend = backend
        self._states = tuple(table.name for table in backend.tables)
        self._maps, self._lists, self._turnover = maps, lists, turnover

    def abort(self) -> None:
        """The snapshot was aborted: no checkpoint is needed. `write` must be driven all the same.

        If `write` has made the folder by then, the owner of the snapshot removes it.
        """
        self.aborted = True
        # What it would write of these, the next one will.
        self._drop_lists()

    def _drop_lists(self) -> None:
        lists, self._lists = self._lists, []
        for _, positions, _ in lists:
            positions.pending -= 1

    @property
    def over(self) -> bool:
        """Whether it needs no more writing."""
        return self not in self._backend.captures

    def write(self, target: Path | None) -> Work[tuple[KeyedHandle, SnapshotBytes] | None]:
        """Writes the captured state; see `values.Work` for how it is driven.

        Arguments:
            target: folder to make for the files; its parent exists. It does not, or is the one that
                was announced. May be None if the capture is aborted.

        Returns:
            The handle and how many bytes are new and linked, or None if aborted.

        Raises:
            ProtocolError: if an older capture isn't written yet, or this one is already.
            StoreError, OSError: if the files can't be made; the backend stays usable if the
                capture is `over`. Else RocksDB has failed, and nothing more can be written.
        """
        backend = self._backend
        if not backend.captures or backend.captures[0] is not self:
            message = f"the capture of snapshot {self.number} is written out of order or twice"
            raise ProtocolError(message)
        inline: bytes | None = None
        if backend.store is None and not self.aborted:
            inline = yield from self._pack()
            if inline is None and not self.aborted:
                try:
                    yield from backend.open_blocks()
                except Exception:
                    # All of it is in memory yet, and the next capture takes it as a whole.
                    yield from self._write_maps()
                    backend.captures.popleft()
                    raise
        yield from self._write_maps()
        result = None
        try:
            if not self.aborted:
                result = yield from self._handle(inline, target)
            elif backend.store is not None and backend.files.begun:
                yield from backend.offload(partial(backend.files.give_up, backend.store))
        except Exception:
            # The state is written; only this snapshot has failed.
            backend.captures.popleft()
            raise
        backend.captures.popleft()
        return None if self.aborted else result

    def _handle(
        self, inline: bytes | None, target: Path | None
    ) -> Work[tuple[KeyedHandle, SnapshotBytes]]:
        backend = self._backend
        groups = backend.groups
        if inline is not None:
            handle = KeyedHandle(groups.start, groups.stop, self._states, inline=inline)
            return handle, SnapshotBytes(new=len(inline))
        if target is None or backend.store is None:
            raise ProtocolError(f"snapshot {self.number} needs a folder for its files")
        work = partial(backend.files.checkpoint, backend.store, target)
        files, size = yield from backend.offload(work)
        handle = KeyedHandle(
            groups.start, groups.stop, self._states, folder=target.name, files=files
        )
        return handle, size

    def _pack(self) -> Work[bytes | None]:
        """All entries for the handle, or None if they are too many or the capture is aborted."""
        backend = self._backend
        if backend.inline_threshold == 0:
            return None
        maps = {table.table_id: entries for table, entries in self._maps}
        states: list[list[tuple[bytes, bytes]]] = []
        size = 0
        timer = backend.timer()
        for table_id in range(len(self._states)):
            pairs: list[tuple[bytes, bytes]] = []
            states.append(pairs)
            entries = maps.get(table_id, {})
            all_keys, all_values = iter(entries), iter(entries.values())
            chunk = backend.tables[table_id].chunk_entries()
            while keys := list(islice(all_keys, chunk)):
                values = list(islice(all_values, chunk))
                encoded, _ = encode_entries(backend.codec, values)
                originals = backend.codec.encode_values(plain_keys(keys))
                for original, data in zip(originals, encoded, strict=True):
                    if data is not None:
                        pairs.append((original, data))
                        size += len(original) + len(data) + INLINE_ENTRY_BYTES
                if size > backend.inline_threshold:
                    return None
                if timer.is_over(len(keys)):
                    yield None
                    if self.aborted:
                        return None
                    timer.restart()
        packed: bytes = msgpack.packb(states)
        return packed if len(packed) <= backend.inline_threshold else None

    def _write_maps(self) -> Work[None]:
        backend = self._backend
        timer = backend.timer()
        for table, entries in self._maps:
            # Values may be replaced by their bytes between slices, so they are taken late.
            all_keys, all_values = iter(entries), iter(entries.values())
            while keys := list(islice(all_keys, chunk := backend.chunk_entries(table))):
                backend.write_entries(table, keys, list(islice(all_values, chunk)))
                if timer.is_over(len(keys)):
                    yield None
                    timer.restart()
        if backend.blocks is not None:
            for table, entries in self._maps:
                written = [entries, backend.written_ahead(table)]
                yield from backend.blocks.tidy(table, self.number, written, timer)
            for table, positions, values in self._lists:
                yield from backend.blocks.write_positions(table, positions, values, timer)
        elif self._lists:
            raise ProtocolError(f"snapshot {self.number} has state by position and no blocks")
        self._drop_lists()
        for table, entries in self._maps:
            table.captured.pop(0)
            changed = len(entries) + backend.count_lasting(table, entries)
            many = BEGIN_SHARE * max(1, len(table.clean))
            # Or in the meantime, of which the next capture will have all.
            table.turned_over = len(table.dirty) >= many or (
                table in self._turnover and changed >= many
            )
            if backend.blocks is not None:
                backend.blocks.begin_positions(table)
        self._maps = []
        backend.capture_written()
