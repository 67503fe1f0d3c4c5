"""Define the kinds of databases for state that is larger than memory."""

from __future__ import annotations

from enum import Enum


class ColdStoreKind(Enum):
    """The database that stores keyed state which is too large for a manifest or for memory.

    ROCKSDB: RocksDB, from the package `rocksdict`.
    SQLITE: SQLite, from the standard library of Python.
    """

    ROCKSDB = "rocksdb"
    SQLITE = "sqlite"
