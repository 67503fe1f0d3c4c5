"""Lock a job's checkpoint folder, so that only one JobManager at a time changes it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from penstock.dataflow.errors import ProtocolError, Recoverability, StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error, store_error
from penstock.snapshot.storage.job_paths import JobPaths

#: The error numbers of `FileSystem.lock` if locks do not work on the file system.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})

_LOCK_GONE = (
    "the lock was removed or replaced while this job ran, and another job may have taken the "
    "folder, so this one ends"
)
_FOLDER_GONE = (
    "the checkpoint folder was removed or moved while the job ran, so the job ends. If it was "
    "moved, put it back and resume the job. If it is lost, the job can only begin from the start: "
    "first remove the output that it has published, or its records will be there twice"
)


class FolderLock:
    """The lock of a checkpoint folder.

    A process holds the lock until it releases the lock, or until the process ends.

    Arguments:
        files: the file system.
        path: the path of the lock file, which records the process that holds the lock.
    """

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files, self._path = files, path
        #: The token of the lock, or None while this object does not hold the lock.
        self._token: int | None = None

    def acquire(self) -> None:
        """Take the lock of the folder.

        Raises:
            StoreError: if another process has the lock, or locks do not work on the file system.
            ProtocolError: if this object holds the lock already.
        """
        if self._token is not None:
            raise ProtocolError("the store is locked already")
        holder = {"pid": os.getpid(), "host": os.uname().nodename}
        try:
            self._token = self._files.lock(self._path, json.dumps(holder).encode())
        except BlockingIOError:
            raise StoreError(
                f"the folder is in use by {self._holder()}; stop that first, or use another folder",
                self._path,
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise StoreError(
                    f"locks do not work on this file system ({error.strerror}), so nothing would "
                    "keep two JobManagers apart; use a folder on a local disk",
                    self._path,
                ) from error
            raise store_error("lock the checkpoint folder", self._path, error) from error

    def release(self) -> None:
        """Release the lock; do nothing if this object does not hold it."""
        if self._token is not None:
            token, self._token = self._token, None
            self._files.unlock(self._path, token)

    def require(self) -> None:
        """Raise an error unless the lock is held.

        Raises:
            ProtocolError: if this object has not taken the lock.
            StoreError: if the folder or its lock file was removed or replaced.
        """
        if self._token is None:
            raise ProtocolError("the store must be locked before its folder is changed")
        with raising_store_error("look at the lock", self._path):
            if self._files.holds(self._path, self._token):
                return
            gone = not self._files.exists(JobPaths(self._path.parent).job)
        raise StoreError(
            _FOLDER_GONE if gone else _LOCK_GONE,
            self._path.parent if gone else self._path,
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _holder(self) -> str:
        try:
            record = json.loads(self._files.read(self._path))
            return f"process {record['pid']} on host {record['host']}"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "another process"
