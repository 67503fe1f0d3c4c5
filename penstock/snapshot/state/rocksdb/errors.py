"""Classifies the errors of RocksDB by their text, since they have no error number."""

from __future__ import annotations

import errno
import os

from penstock.dataflow.errors import Recoverability, recoverability_of

__all__ = ["no_room_message", "rocks_recoverability"]


def rocks_recoverability(error: Exception) -> Recoverability:
    """Return whether the job can recover from an error of RocksDB by a restart."""
    if isinstance(error, OSError):
        return recoverability_of(error)
    if os.strerror(errno.EFBIG) in str(error):
        return Recoverability.NON_RECOVERABLE
    disk = str(error).startswith("IO error")
    return Recoverability.ENVIRONMENT if disk else Recoverability.RECOVERABLE


def no_room_message(error: Exception) -> str | None:
    """Return the message of a failed restore if the disk is full, otherwise None."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return (
        f"the disk is full, so the state of a snapshot cannot be restored ({error}); the snapshot "
        f"itself is well: make room, and resume from it"
    )
