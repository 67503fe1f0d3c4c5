"""Stores keyed state in a database as rows, so that entries may be evicted.

Each entry has one row.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from penstock.snapshot.state.cold.cold_store import ColdStore
from penstock.snapshot.state.cold.database import StateDatabase
from penstock.snapshot.state.cold.rows import (
    ROW_PREFIX,
    RowKeys,
    original_key,
    value_offset,
)
from penstock.snapshot.state.entries import MISSING, StateCodec, encode_entries
from penstock.snapshot.state.table.keyed_table import KeyedTable


class RowStore(ColdStore):
    """Reads and writes the entries of all tables of a backend as rows of one database.

    Arguments:
        database: the database.
        codec: the codec, which encodes keys and values.
        row_keys: the object that makes the keys of rows.
    """

    is_readable = True

    def __init__(self, database: StateDatabase, codec: StateCodec, row_keys: RowKeys) -> None:
        self._database = database
        self._codec = codec
        self._row_keys = row_keys

    @property
    def unflushed_bytes(self) -> int:
        """The number of bytes that were written since the last requested flush."""
        return self._database.unflushed_bytes

    @property
    def unlisted_bytes(self) -> int:
        """The number of bytes that were written since the table files were last listed."""
        return self._database.unlisted_bytes

    def chunk_entries(self, table: KeyedTable) -> int:
        """Return how many entries of a table to write in one batch."""
        return table.size.chunk_entries()

    def write(self, table: KeyedTable, keys: list[object], values: list[object]) -> None:
        """Write dirty or captured entries of a table as rows, and mark them as clean."""
        encoded, marked = encode_entries(self._codec, values)
        batch = self._database.new_batch()
        rows = self._row_keys.rows(table.table_id, keys, is_composite=table.is_composite)
        if marked:
            for (row_key, opening), data in zip(rows, encoded, strict=True):
                if data is None:
                    del batch[row_key]
                else:
                    batch[row_key] = opening + data
        else:
            for (row_key, opening), data in zip(rows, encoded, strict=True):
                batch[row_key] = opening + data  # type: ignore[operator]
        self._database.write(batch)
        table.size.note_encoded(encoded)
        table.absorb(keys, values, marked=marked)

    def read(self, table: KeyedTable, key: object) -> object:
        """Read the value of `key` in a table, or return `MISSING` if there is no row."""
        row_key = self._row_keys.row_key(table.table_id, key, is_composite=table.is_composite)
        data = self._database.get(row_key)
        return MISSING if data is None else self._codec.decode_value(data[value_offset(data) :])

    def read_all(self, table: KeyedTable, keys: Collection[object]) -> list[tuple[object, object]]:
        """Return each of the keys of a table that has a row, with its value."""
        row_key, decode = self._row_keys.row_key, self._codec.decode_value
        table_id, composite = table.table_id, table.is_composite
        rows = {row_key(table_id, key, is_composite=composite): key for key in keys}
        ordered = sorted(rows)
        return [
            (rows[row], decode(data[value_offset(data) :]))
            for row, data in zip(ordered, self._database.get_all(ordered), strict=True)
            if data is not None
        ]

    def entries_of(self, table: KeyedTable, key: object) -> Iterator[tuple[object, bytes]]:
        """Yield each composite key of `key` in a composite table, and its encoded value."""
        prefix = self._row_keys.prefix_of(table.table_id, key)
        for row_key, data in self._database.rows_of(prefix):
            entry = self._codec.decode_value(original_key(row_key, data))
            yield entry, data[value_offset(data) :]

    def cold_entries(
        self, table_id: int, groups: Iterable[int], hot: Container[object]
    ) -> Iterator[tuple[object, object]]:
        """Return an iterator over the stored entries of a table whose keys are not in `hot`.

        Writes after this call do not change the result.
        """
        rows = self._database.rows_of_each(ROW_PREFIX.pack(group, table_id) for group in groups)
        return self._decoded(rows, hot)

    def _decoded(
        self, rows: Iterator[tuple[bytes, bytes]], hot: Container[object]
    ) -> Iterator[tuple[object, object]]:
        decode = self._codec.decode_value
        for row_key, data in rows:
            key = decode(original_key(row_key, data))
            if key not in hot:
                yield key, decode(data[value_offset(data) :])

    def remove_table(self, table: KeyedTable, groups: Iterable[int]) -> bool:
        """Remove all rows of a table, and return True."""
        batch = self._database.new_batch()
        for group in groups:
            prefix = ROW_PREFIX.pack(group, table.table_id)
            # The prefix is followed by the canonical key, whose first byte is a letter.
            batch.delete_range(prefix, prefix + b"\xff")
        self._database.write(batch)
        return True

    def page(
        self, table: KeyedTable, groups: range, cursor: bytes, limit: int
    ) -> tuple[list[tuple[object, object]], bytes | None]:
        """Return some stored entries of a table, and the cursor of the next page."""
        decode = self._codec.decode_value
        entries: list[tuple[object, object]] = []
        group = ROW_PREFIX.unpack_from(cursor)[0] if cursor else groups.start
        for current in range(group, groups.stop):
            prefix = ROW_PREFIX.pack(current, table.table_id)
            begin = cursor if current == group and cursor else prefix
            for row_key, data in self._database.rows_of(prefix, begin):
                if len(entries) == limit:
                    return entries, row_key
                key = decode(original_key(row_key, data))
                entries.append((key, decode(data[value_offset(data) :])))
        return entries, None

    def memory_bytes(self) -> int:
        """Return an estimate of the memory that remembered keys take, in bytes."""
        return self._row_keys.memory_bytes()

    def free_memory(self) -> None:
        """Forget the remembered keys of rows, to free their memory."""
        self._row_keys.forget()
