"""Classifies the errors of RocksDB, which have a text but no number."""

from __future__ import annotations

import errno
import os

from penstock.dataflow.errors import Recoverability, recoverability_of

__all__ = ["no_room_message", "rocks_recoverability"]


def rocks_recoverability(error: Exception) -> Recoverability:
    """Return whether a restart may help after an error of RocksDB."""
    if isinstance(error, OSError):
        return recoverability_of(error)
    if os.strerror(errno.EFBIG) in str(error):
        return Recoverability.NON_RECOVERABLE
    disk = str(error).startswith("IO error")
    return Recoverability.ENVIRONMENT if disk else Recoverability.RECOVERABLE


def no_room_message(error: Exception) -> str | None:
    """Return the message for a restore that failed because the disk is full, else None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return (
        f"the disk is full, so the state of a snapshot cannot be restored ({error}); the snapshot "
        f"itself is well: make room, and resume from it"
    )
