"""The few file operations that the store is made of: on the disk, and in memory.

The one in memory crashes and forgets what was not synced, for tests and simulation. Nothing here
knows what a snapshot is.
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
    """The few file operations that the store is made of, on the disk.

    `write`, `link`, `rename`, `remove`, `make_folder` and `remove_tree` are durable only after
    `sync`: of the file for its content, of the folder for its names. All raise `OSError`.
    """

    def make_folder(self, path: Path) -> None:
        """Make one folder; its parent must exist, it must not."""
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
        """Make `target` a second name of a file, or a copy; returns whether it is a name."""
        try:
            self.link(source, target)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            # Another file system, or one without links.
            self.write(target, self.read(source))
            return False
        return True

    def links(self, path: Path) -> int:
        """How many names a file has."""
        return path.stat().st_nlink

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, taking that from whatever had it."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all in it."""
        shutil.rmtree(path)

    def read(self, path: Path) -> bytes:
        """All of a file."""
        with _open_regular(path) as file:
            return file.read()

    def names(self, path: Path) -> list[str]:
        """The names in a folder, in order."""
        return sorted(entry.name for entry in path.iterdir())

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""
        return path.exists()

    def is_link(self, path: Path) -> bool:
        """Return whether it is a symbolic link."""
        return path.is_symlink()

    def size(self, path: Path) -> int:
        """Bytes of a file."""
        return path.stat().st_size

    def checksum(self, path: Path) -> str:
        """Hex BLAKE2b-128 of a file's content, as in `FileRecord`."""
        with _open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return digest.hexdigest()

    def lock(self, path: Path, holder: bytes) -> int:
        """Lock a file for this process's life and write `holder` into it; returns a token.

        Raises `BlockingIOError` if it is taken, and `OSError` with ENOLCK if locks do not lock.
        """
        # It is truncated: what a link at this name leads to must not be.
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
        # On some shared file systems flock succeeds and does nothing: a second one tells.
        second = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(second)
        raise OSError(errno.ENOLCK, "a lock that was held could be taken again")

    def holds(self, path: Path, token: int) -> bool:
        """Whether the locked file still is the one of that name."""
        try:
            return os.path.samestat(os.fstat(token), path.stat())
        except FileNotFoundError:
            return False

    def unlock(self, path: Path, token: int) -> None:
        """Let the lock go. The file stays: removing it would let two take "the" lock."""
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
