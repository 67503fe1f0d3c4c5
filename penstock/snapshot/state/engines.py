"""Chooses the kind of database in which cold state is stored.

RocksDB is the default. The package `rocksdict`, which contains it, has no wheels for some builds of
Python. It is therefore imported only where RocksDB is used. Without it, SQLite is the default.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePath

from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import FileRecord
from penstock.snapshot.state.cold.database import DatabaseEngine, SharedMemory, StateDatabase
from penstock.snapshot.state.cold.errors import no_room_message, recoverability_of_database
from penstock.snapshot.state.sqlite.change_files import CHANGES_SUFFIX
from penstock.snapshot.state.sqlite.database import SQLITE

logger = logging.getLogger(__name__)


def engine_of_kind(kind: ColdStoreKind | None) -> DatabaseEngine:
    """Return the engine that a job has chosen; the default one if it has chosen none.

    Raises:
        StoreError: if the job has chosen RocksDB, and `rocksdict` cannot be imported.
    """
    if kind is None:
        return default_engine()
    if kind is ColdStoreKind.SQLITE:
        return SQLITE
    return _rocksdb(
        "the job has chosen RocksDB for large state (cold_store = rocksdb)",
        "or choose SQLite (cold_store = sqlite)",
    )


@cache
def default_engine() -> DatabaseEngine:
    """Return RocksDB if `rocksdict` can be imported, else SQLite, and log the latter once."""
    try:
        return engine_of_kind(ColdStoreKind.ROCKSDB)
    except StoreError as error:
        logger.warning(
            "large state will be stored in SQLite instead of RocksDB, because rocksdict cannot be "
            "imported (%s); cold_store = sqlite chooses SQLite without this warning",
            error.__cause__,
        )
        return SQLITE


def engine_of(files: Iterable[FileRecord]) -> DatabaseEngine:
    """Return the engine that can open the files of a keyed state in a snapshot.

    Raises:
        StoreError: if these are files of RocksDB, and `rocksdict` cannot be imported.
    """
    if any(PurePath(file.name).suffix == CHANGES_SUFFIX for file in files):
        return SQLITE
    return _rocksdb(
        "the state in this snapshot is stored in files of RocksDB",
        "or resume from it once where it is installed, with cold_store = sqlite",
    )


def open_files(
    engine: DatabaseEngine,
    folder: Path,
    shared: SharedMemory,
    stored: Path,
    *,
    read_only: bool = False,
) -> StateDatabase:
    """Open a database with the files of a snapshot. This is slow.

    Arguments:
        engine: the engine that can open the files.
        folder: the folder to which the files were linked or copied.
        shared: the memory for the database.
        stored: the folder of the files in the snapshot, for messages.
        read_only: whether the database is only read.

    Raises:
        StoreError: if the files are damaged, or the disk is full.
    """
    try:
        opened = engine.read if read_only and engine.read is not None else engine.open
        return opened(folder, shared)
    except Exception as error:
        # All exceptions are caught, since rocksdict does not define an exception class.
        recoverability = recoverability_of_database(error)
        if full := no_room_message(error):
            raise StoreError(full, folder, recoverability=recoverability) from error
        message = f"{engine.name} cannot open the state in a snapshot ({error})"
        raise StoreError(
            f"{message}; use another snapshot", stored, recoverability=recoverability
        ) from error


def _rocksdb(why: str, otherwise: str) -> DatabaseEngine:
    try:
        from penstock.snapshot.state.rocksdb.database import ROCKSDB
    except ImportError as error:
        raise StoreError(
            f"{why}, but the package rocksdict cannot be imported ({error}): install it, "
            f"{otherwise}",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
    return ROCKSDB
