"""Classifies the errors of databases.

The errors of RocksDB have no number, so their text is examined.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from penstock.dataflow.errors import PenstockError, Recoverability, StoreError, recoverability_of
from penstock.snapshot.storage.filesystem.file_errors import with_advice

#: The primary codes of the errors of SQLite in which the disk or the file system has failed.
_DISK_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def recoverability_of_database(error: Exception) -> Recoverability:
    """Return whether the job can recover from an error of a database by a restart."""
    if isinstance(error, OSError | PenstockError):
        return recoverability_of(error)
    if isinstance(error, sqlite3.Error):
        disk = _sqlite_code(error) in _DISK_CODES
        return Recoverability.ENVIRONMENT if disk else Recoverability.RECOVERABLE
    if os.strerror(errno.EFBIG) in str(error):
        return Recoverability.NON_RECOVERABLE
    disk = str(error).startswith("IO error")
    return Recoverability.ENVIRONMENT if disk else Recoverability.RECOVERABLE


def _sqlite_code(error: Exception) -> int | None:
    """Return the primary code of an error of SQLite; None if it has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def no_room_message(error: Exception) -> str | None:
    """Return the message of a failed restore if the disk is full, otherwise None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    full = full or _sqlite_code(error) == sqlite3.SQLITE_FULL
    if not full and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return (
        f"the disk is full, so the state of a snapshot cannot be restored ({error}); the snapshot "
        f"itself is well: make room, and resume from it"
    )


def state_error(what: str, folder: Path, error: Exception) -> StoreError:
    """Return the error of a database as a `StoreError`.

    Arguments:
        what: the action that failed.
        folder: the folder of the database.
        error: the error that the database or the file system has raised.
    """
    return StoreError(
        f"cannot {what} keyed state: {with_advice(error)}",
        folder,
        recoverability=recoverability_of_database(error),
    )
