"""Implement the file operations of the store on the local disk.

This module does not depend on snapshots. `memory.py` has a simulation of it for tests.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

from penstock.snapshot.storage.filesystem.durable_files import sync_path

# Other systems than Linux can import this module, but not use it.
with contextlib.suppress(ModuleNotFoundError):
    import fcntl


class FileSystem:
    """The file operations of the store, on the local disk.

    The effect of `write`, `link`, `rename`, `remove`, `make_folder` and `remove_tree` is durable
    only after `sync`. Call `sync` with a file for its content, and with a folder for the names in
    it. All methods raise `OSError` if the operation fails.
    """

    def make_folder(self, path: Path) -> None:
        """Create a folder. The parent folder must exist, and the new folder must not exist."""
        path.mkdir()

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a file; raise `OSError` if the path is a symbolic link."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o666), "wb") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        sync_path(path)

    def link(self, source: Path, target: Path) -> None:
        """Create a hard link to a file; raise `FileExistsError` if `target` exists."""
        os.link(source, target)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """Create a hard link to a file, or a copy of it if it cannot be linked.

        Returns:
            Whether `target` is a hard link.
        """
        try:
            self.link(source, target)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            # The target is on another file system, or the file system has no hard links.
            self.write(target, self.read(source))
            return False
        return True

    def links(self, path: Path) -> int:
        """Return the number of hard links to a file."""
        return path.stat().st_nlink

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; replace the file at `target` if there is one."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content."""
        shutil.rmtree(path)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        with _open_regular(path) as file:
            return file.read()

    def names(self, path: Path) -> list[str]:
        """Return the names of all files and folders in a folder, sorted."""
        return sorted(entry.name for entry in path.iterdir())

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder exists at the path."""
        return path.exists()

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link."""
        return path.is_symlink()

    def size(self, path: Path) -> int:
        """Return the size of a file, in bytes."""
        return path.stat().st_size

    def checksum(self, path: Path) -> str:
        """Return the BLAKE2b-128 checksum of a file's content in hex, as in `FileRecord`."""
        with _open_regular(path) as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return digest.hexdigest()

    def lock(self, path: Path, holder: bytes) -> int:
        """Lock a file until `unlock` or the end of the process, and write `holder` into it.

        Returns:
            A token for `holds` and `unlock`.

        Raises:
            BlockingIOError: if another process has the lock.
            OSError: with ENOLCK if locks do not work on this file system.
        """
        # Do not follow a symbolic link, because the file is truncated below.
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
        # On some shared file systems, flock succeeds and does nothing. So try a second lock, which
        # must fail.
        second = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(second)
        raise OSError(errno.ENOLCK, "a lock that was held could be taken again")

    def holds(self, path: Path, token: int) -> bool:
        """Return whether the path still refers to the file that was locked."""
        try:
            return os.path.samestat(os.fstat(token), path.stat())
        except FileNotFoundError:
            return False

    def unlock(self, path: Path, token: int) -> None:
        """Release a lock, and empty its file.

        The file is not removed. Otherwise two processes could lock different files of that name.
        """
        del path
        os.ftruncate(token, 0)
        os.close(token)


def _open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; raise `OSError` for a pipe or a device.

    Reading a pipe or a device could block, or return data without an end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
