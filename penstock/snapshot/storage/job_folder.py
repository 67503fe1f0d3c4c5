"""Create a job's folder durably, and check that its file system supports snapshots."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths

#: The error numbers for folders that this user or this file system cannot sync. They are ignored.
_NOT_OURS_TO_SYNC = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
    }
)


def make_folders(files: FileSystem, path: Path) -> None:
    """Create a folder and its missing parent folders; their names are not durable yet.

    Raises:
        StoreError: if the file system has no folders of its users, such as that of `/proc`.
        OSError: if a folder cannot be created for another reason.
    """
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            files.make_folder(folder)
        except FileExistsError:
            continue
        except FileNotFoundError as error:
            if not files.exists(folder.parent):
                raise
            raise StoreError(
                f"cannot create the folder: {folder.parent} takes no new folders; use another one",
                folder,
            ) from error


def sync_parents(files: FileSystem, root: Path) -> None:
    """Make the names of the root folder and of all its parent folders durable."""
    # Sync the parents that existed before, too: the process that created them may have been killed
    # before it synced them. The root itself is synced when files are created in it.
    for folder in root.parents:
        try:
            files.sync(folder)
        except OSError as error:
            # A folder of another user may not be readable, or its file system may have no sync.
            # Any other error is raised: a crash of the machine might lose the root folder.
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise


def require_fit(files: FileSystem, root: Path) -> None:
    """Check that files and hard links can be created in the root folder.

    Raises:
        StoreError: if the file system has no hard links.
        OSError: if a file cannot be written.
    """
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
