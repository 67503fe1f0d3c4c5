"""The file operations of the store, on the disk.

Nothing here depends on snapshots. `memory.py` has a simulation for tests.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

from penstock.snapshot.storage.filesystem.durable_files import sync_path

__all__ = ["FileSystem"]


class FileSystem:
    """The file operations of the store, on the disk.

    `write`, `link`, `rename`, `remove`, `make_folder` and `remove_tree` are durable only after
    `sync`: of the file for its content, of the folder for its names. All raise `OSError`.
    """

    def make_folder(self, path: Path) -> None:
        """Make a folder that does not exist, in a folder that does."""
        path.mkdir()

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a file; a symbolic link of that name is not followed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o666), "wb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """Make a file's content, or a folder's names, outlive a crash."""
        sync_path(path)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; raises `FileExistsError` if that is taken."""
        os.link(source, target)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """Make `target` a second name of a file, or else a copy; return whether it is a name."""
        try:
            self.link(source, target)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            # The target is on another file system, or on one without links.
            self.write(target, self.read(source))
            return False
        return True

    def links(self, path: Path) -> int:
        """Return the number of names of a file."""
        return path.stat().st_nlink

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; another one of the target name is replaced."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content."""
        shutil.rmtree(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        with _open_regular(path) as file:
            return file.read()

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(entry.name for entry in path.iterdir())

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        return path.exists()

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link."""
        return path.is_symlink()

    def size(self, path: Path) -> int:
        """Return the size of a file, in bytes."""
        return path.stat().st_size

    def checksum(self, path: Path) -> str:
        """Return the hex BLAKE2b-128 of a file's content, as in `FileRecord`."""
        with _open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return digest.hexdigest()

    def lock(self, path: Path, holder: bytes) -> int:
        """Lock a file until the process ends, and write `holder` into it; return a token.

        Raises:
            BlockingIOError: if another process has the lock.
            OSError: with ENOLCK if locks do not work on this file system.
        """
        # Do not follow a link: the file is truncated below.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_lock_works(path)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, holder)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @staticmethod
    def _check_lock_works(path: Path) -> None:
        # On some shared file systems flock succeeds and does nothing: try a second lock.
        second = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(second)
        raise OSError(errno.ENOLCK, "a lock that was held could be taken again")

    def holds(self, path: Path, token: int) -> bool:
        """Return whether the locked file still has that name."""
        try:
            return os.path.samestat(os.fstat(token), path.stat())
        except FileNotFoundError:
            return False

    def unlock(self, path: Path, token: int) -> None:
        """Release the lock. The file stays: if it were removed, two processes could lock it."""
        del path
        os.ftruncate(token, 0)
        os.close(token)


def _open_regular(path: Path) -> BufferedReader:
    """Open a file to read it; a pipe or a device would block, or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
