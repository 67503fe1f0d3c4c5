"""Create a job's folder durably, and check that its file system is fit for use."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["make_folders", "require_fit", "sync_parents"]

#: Errors for folders that this user or this file system cannot sync; no other error is ignored.
_NOT_OURS_TO_SYNC = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
    }
)


def make_folders(files: FileSystem, path: Path) -> None:
    """Make a folder and the missing ones above it."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            files.make_folder(folder)


def sync_parents(files: FileSystem, root: Path) -> None:
    """Make the names of all folders above a root durable."""
    # Also of folders that existed: their creator may have been killed before syncing them. The root
    # is synced with the files that are written into it next.
    for folder in root.parents:
        try:
            files.sync(folder)
        except OSError as error:
            # Folders of other users may not be readable, or on a file system without sync.
            # After any other error, a crash might lose the root with its content.
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise


def require_fit(files: FileSystem, root: Path) -> None:
    """Fail now instead of at the first snapshot if files cannot be written and linked."""
    probe = JobPaths.temporary(root / "probe", os.getpid())
    second = JobPaths.temporary(root / "probe2", os.getpid())
    for left in (probe, second):
        with suppress(FileNotFoundError):
            files.remove(left)
    files.write(probe, bytes(4096))
    files.sync(probe)
    try:
        files.link(probe, second)
        files.remove(second)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        raise StoreError(
            f"the file system has no hard links ({error.strerror}), which snapshots are "
            "published with; use a folder on another file system",
            root,
        ) from error
    finally:
        with suppress(OSError):
            files.remove(probe)
