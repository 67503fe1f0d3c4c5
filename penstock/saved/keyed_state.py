"""Open the keyed state of one subtask for reading: by key, by prefix, or all of it.

There are two kinds. *Rows* in a database are sorted, so a key is one read, and a prefix is one
range for each key group. RocksDB reads them from the snapshot's files as they are. SQLite first
makes all changes of its change files. *Blocks* and the state in a manifest cannot be searched. So
they are loaded and sorted. They fit into memory, as they did in the job.

No database may open the snapshot's folder itself, since databases write into their folders. So its
files are linked into a temporary folder.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from penstock.dataflow.errors import ProtocolError, Recoverability, StoreError
from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import KeyRefusedError, canonical, tuple_prefix
from penstock.runtime.serialization.codec import Codec
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state.cold.blocks import BLOCKS, newest_entries, read_block
from penstock.snapshot.state.cold.database import StateDatabase
from penstock.snapshot.state.cold.rows import ROW_PREFIX, original_key, value_offset
from penstock.snapshot.state.engines import engine_of, open_files
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

#: The memory of the database that is read, in bytes.
_CACHE_BYTES = 32 * 1024 * 1024
#: The number of rows that are decoded together.
_CHUNK_ROWS = 1024
#: The suffix of table files of RocksDB, which are never written again.
_TABLES = (".sst", ".changes")


class Stored(NamedTuple):
    """An entry as it is stored.

    Arguments:
        group: the key group.
        form: the canonical bytes of the key. The entries of a state are sorted by group and form.
        key: the key; for a composite state, a tuple of the key and further parts.
        value: the value; if it expires, a tuple of the value and the time of its last use.
    """

    group: int
    form: bytes
    key: Any
    value: Any


class KeyedState(ABC):
    """The keyed state of one subtask, opened for reading.

    Arguments:
        handle: the handle of the state.
        max_parallelism: the number of key groups.
        codec: the codec, with the record classes of the snapshot.
    """

    def __init__(self, handle: KeyedHandle, max_parallelism: int, codec: Codec) -> None:
        self.handle = handle
        self.codec = codec
        self._max_parallelism = max_parallelism

    @property
    def groups(self) -> range:
        """The key groups of the subtask."""
        return range(self.handle.first_group, self.handle.end_group)

    def find(self, state: int, key: Any) -> Iterator[Stored]:
        """Yield the entries of a key: one at most, unless the state is composite.

        Arguments:
            state: the id of the state.
            key: the key.

        Raises:
            KeyRefusedError: if nothing of this type can be a key.
        """
        form = canonical(key)
        group = key_group(form, self._max_parallelism)
        if group not in self.groups:
            return
        if self.handle.kind(state).is_composite:
            begin = tuple_prefix(form)
            yield from self.between(state, group, begin, behind(begin))
        else:
            yield from self.between(state, group, form, form + b"\0")

    def prefix(self, state: int, begin: bytes) -> Iterator[Stored]:
        """Yield the entries whose canonical key begins with some bytes, in order."""
        for group in self.groups:
            yield from self.between(state, group, begin, behind(begin))

    @abstractmethod
    def scan(self, state: int) -> Iterator[Stored]:
        """Yield all entries of a state, in order of their key groups and canonical keys."""

    @abstractmethod
    def between(self, state: int, group: int, begin: bytes, end: bytes | None) -> Iterator[Stored]:
        """Yield the entries of one key group with `begin <= form < end`, in order."""

    def close(self) -> None:
        """Close the state."""


class LoadedState(KeyedState):
    """Keyed state that was loaded into memory: that of a manifest, or that of blocks.

    Arguments:
        handle, max_parallelism, codec: as in `KeyedState`.
        entries: all entries, each with the id of its state.
    """

    def __init__(
        self,
        handle: KeyedHandle,
        max_parallelism: int,
        codec: Codec,
        entries: Iterator[tuple[int, Any, Any]],
    ) -> None:
        super().__init__(handle, max_parallelism, codec)
        self._tables: list[list[Stored]] = [[] for _ in handle.states]
        composite = [handle.kind(state).is_composite for state in range(len(handle.states))]
        for state, key, value in entries:
            form = form_of(key)
            group = key_group(form_of(key[0]) if composite[state] else form, max_parallelism)
            self._tables[state].append(Stored(group, form, key, value))
        for table in self._tables:
            table.sort(key=_place)

    def scan(self, state: int) -> Iterator[Stored]:
        """Yield all entries of a state, in order of their key groups and canonical keys."""
        return iter(self._tables[state])

    def between(self, state: int, group: int, begin: bytes, end: bytes | None) -> Iterator[Stored]:
        """Yield the entries of one key group with `begin <= form < end`, in order."""
        table = self._tables[state]
        first = bisect_left(table, (group, begin), key=_place)
        for entry in islice(table, first, None):
            if entry.group != group or (end is not None and entry.form >= end):
                return
            yield entry


def _place(entry: Stored) -> tuple[int, bytes]:
    return entry[:2]


class StoredRows(KeyedState):
    """Keyed state in the rows of a database.

    Arguments:
        handle, max_parallelism, codec: as in `KeyedState`.
        database: the database. This object closes it.
        folder: the folder of the database, which this object removes.
        stored: the folder of the files in the snapshot, for messages.
    """

    def __init__(
        self,
        handle: KeyedHandle,
        max_parallelism: int,
        codec: Codec,
        database: StateDatabase,
        folder: TemporaryFolder,
        stored: Path,
    ) -> None:
        super().__init__(handle, max_parallelism, codec)
        self.database = database
        self._folder = folder
        self._stored = stored

    def scan(self, state: int) -> Iterator[Stored]:
        """Yield all entries of a state, in order of their key groups and canonical keys."""
        return self._decoded(self.raw(state))

    def raw(self, state: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a state, not decoded, in order."""
        if len(self.handle.states) == 1:
            # All rows are those of this state, and a scan without an end is faster.
            return self.database.scan(b"", None)
        return self.database.rows_of_each([ROW_PREFIX.pack(g, state) for g in self.groups])

    def between(self, state: int, group: int, begin: bytes, end: bytes | None) -> Iterator[Stored]:
        """Yield the entries of one key group with `begin <= form < end`, in order."""
        prefix = ROW_PREFIX.pack(group, state)
        if end == begin + b"\0":
            row = self.database.get(prefix + begin)
            return self._decoded(iter(() if row is None else [(prefix + begin, row)]))
        last = behind(prefix) if end is None else prefix + end
        return self._decoded(self.database.scan(prefix + begin, last))

    def _decoded(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Stored]:
        decode = self.codec.decode_values
        try:
            while chunk := list(islice(rows, _CHUNK_ROWS)):
                keys = decode([original_key(row_key, row) for row_key, row in chunk])
                values = decode([row[value_offset(row) :] for _, row in chunk])
                for (row_key, _), key, value in zip(chunk, keys, values, strict=True):
                    yield Stored(row_key[0] << 8 | row_key[1], row_key[4:], key, value)
        except StoreError as error:
            raise _unreadable(error, self._stored) from error
        except (ProtocolError, IndexError, ValueError) as error:
            raise undecodable("a row of keyed state", error, self._stored) from error

    def close(self) -> None:
        """Close the database, and remove its folder."""
        self.database.close()
        self._folder.remove()


def decode_row(codec: Codec, row_key: bytes, row: bytes) -> Stored:
    """Decode one row of a database.

    Raises:
        ProtocolError: if the row is damaged.
    """
    key = codec.decode_value(original_key(row_key, row))
    value = codec.decode_value(row[value_offset(row) :])
    return Stored(row_key[0] << 8 | row_key[1], row_key[4:], key, value)


def open_keyed_state(
    handle: KeyedHandle, max_parallelism: int, codec: Codec, snapshot: Path
) -> KeyedState:
    """Open the keyed state of one subtask for reading.

    Arguments:
        handle: the handle of the state.
        max_parallelism: the number of key groups of the operator.
        codec: the codec, with the record classes of the snapshot.
        snapshot: the folder of the snapshot.

    Raises:
        StoreError: if a file is missing or damaged.
    """
    if handle.folder is None:
        pairs = _inline_entries(handle, codec, snapshot)
        return LoadedState(handle, max_parallelism, codec, pairs)
    stored = snapshot / handle.folder
    engine = engine_of(handle.files)
    folder = TemporaryFolder("state")
    try:
        place = folder.path / "db"
        place.mkdir()
        with raising_store_error("read the state in a snapshot", stored):
            for file in handle.files:
                link_to_read(snapshot / file.name, place / Path(file.name).name)
        memory = engine.memory(_CACHE_BYTES)
        database = open_files(engine, place, memory, stored, read_only=True)
        try:
            if not database.holds_blocks():
                return StoredRows(handle, max_parallelism, codec, database, folder, stored)
            blocks = (read_block(codec, key, row) for key, row in database.rows_of(BLOCKS))
            loaded = LoadedState(handle, max_parallelism, codec, newest_entries(blocks))
        except StoreError as error:
            database.close()
            raise _unreadable(error, stored) from error
        except BaseException:
            database.close()
            raise
        database.close()
        folder.remove()
        return loaded
    except BaseException:
        folder.remove()
        raise


def link_to_read(source: Path, target: Path) -> None:
    """Link a file into a folder that a database opens, so that nothing can change the source."""
    if source.suffix not in _TABLES:
        shutil.copyfile(source, target)
        return
    source.stat()  # raises an error if the file is missing
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(
            source.absolute()
        )  # for another file system, on which a copy would take long


def _inline_entries(
    handle: KeyedHandle, codec: Codec, snapshot: Path
) -> Iterator[tuple[int, Any, Any]]:
    try:
        for state, pairs in enumerate(msgpack.unpackb(handle.inline)):
            for key, data in pairs:
                yield state, codec.decode_value(key), codec.decode_value(data)
    except (ProtocolError, ValueError, TypeError) as error:
        raise undecodable("an entry of keyed state", error, snapshot) from error


def form_of(key: Any) -> bytes:
    """Return the canonical bytes of a stored key, or bytes for sorting if it has none here.

    The key of a class that is not there may have lost its canonical bytes.
    """
    try:
        return canonical(key)
    except KeyRefusedError:
        return b"?" + repr(key).encode("utf-8", "surrogatepass")


def behind(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all bytes with a prefix; None if there are none."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes((rest[-1] + 1,)) if rest else None


def undecodable(what: str, error: Exception, path: Path) -> StoreError:
    """Return the error for a part of a snapshot that cannot be decoded."""
    return StoreError(
        f"{what} can't be decoded ({error}); use another snapshot",
        path,
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def _unreadable(error: StoreError, path: Path) -> StoreError:
    """Return an error that names the folder of the snapshot, not the temporary folder."""
    text = str(error).partition(" [")[0]
    return StoreError(
        f"the state in a snapshot can't be read: {text}; check it with `penstock "
        "snapshots verify`, and use another snapshot if it is damaged",
        path,
        recoverability=error.recoverability,
    )
