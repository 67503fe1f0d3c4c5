"""Databases of state that depend on nothing but the seed, and that are closed.

* `closing_databases`: a real process that is killed has no open files any more. A simulated one
  leaves objects, and Python warns about a file that is still open when its object is dropped.
* `orderly_databases`: RocksDB flushes and compacts in threads of its own. How many files a
  database has would depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from penstock.dataflow.errors import StoreError
from penstock.snapshot.state.cold.database import SharedMemory
from penstock.snapshot.state.sqlite.database import SqliteDatabase

#: The share of the memory after which a database flushes what was written.
_FLUSHED_SHARE = 8
#: The number of flushes after which a database compacts.
_FLUSHES = 8
#: The size of a write buffer that no simulated job fills, in bytes.
_NEVER_FULL = 64 * 1024 * 1024


@contextmanager
def closing_databases() -> Iterator[None]:
    """Close the SQLite databases that are opened in this context, at its end."""
    made: list[SqliteDatabase] = []
    create = SqliteDatabase.__init__

    def register(database: SqliteDatabase, *arguments: Any, **named: Any) -> None:
        create(database, *arguments, **named)
        made.append(database)

    SqliteDatabase.__init__ = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SqliteDatabase.__init__ = create  # type: ignore[method-assign]
        for database in made:
            with suppress(StoreError):
                database.close()


@contextmanager
def orderly_databases() -> Iterator[None]:
    """Let RocksDB flush and compact only when something is written, in this context.

    It flushes when an eighth of its memory is written, and compacts after eight flushes.
    """
    try:
        from penstock.snapshot.state.rocksdb.database import RocksDatabase
        from penstock.snapshot.state.rocksdb.options import database_options
    except ModuleNotFoundError:
        yield  # Without rocksdict, all state is in SQLite.
        return
    create, write = RocksDatabase.__init__, RocksDatabase.write
    #: The bytes that were written since the last flush, and the number of flushes.
    written: WeakKeyDictionary[RocksDatabase, tuple[int, int]] = WeakKeyDictionary()

    def create_orderly(
        database: RocksDatabase,
        folder: Path,
        shared: SharedMemory,
        make_options: Callable[[Any], Any] = database_options,
    ) -> None:
        def make(shared: Any) -> Any:
            options = make_options(shared)
            options.set_write_buffer_size(_NEVER_FULL)
            shared.write_buffers.set_buffer_size(0)  # no limit
            options.set_disable_auto_compactions(True)
            return options

        create(database, folder, shared, make)
        written[database] = 0, 0

    def write_orderly(database: RocksDatabase, batch: Any) -> None:
        size = batch.size_in_bytes()
        write(database, batch)
        size, flushes = size + written[database][0], written[database][1]
        if size * _FLUSHED_SHARE >= database._shared.capacity_bytes:
            database._database.flush()
            size, flushes = 0, flushes + 1
            if flushes % _FLUSHES == 0:
                database._database.compact_range(None, None)
        written[database] = size, flushes

    rocks: Any = RocksDatabase
    rocks.__init__, rocks.write = create_orderly, write_orderly
    try:
        yield
    finally:
        rocks.__init__, rocks.write = create, write
