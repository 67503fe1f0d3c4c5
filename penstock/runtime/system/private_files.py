"""Open and write files that only this user can access, without following links.

The folder of the files may have been open to other users before, so it may contain their links.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_private(path: Path, flags: int) -> int:
    """Open a regular file, without following a link, and return its descriptor.

    Raise `OSError` if the path is a link, is not a regular file, or cannot be opened. Other users
    may have put links into the folder before it became private.
    """
    # Without O_NONBLOCK, opening a FIFO would block until another process opens its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file; remove it", os.fspath(path))
    return descriptor


def read_private(path: Path) -> bytes:
    """Return the content of a regular file. Raise `OSError` if it cannot be read."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace_private(path: Path, data: bytes, sync: bool = False) -> None:
    """Replace a file by a new one with `data`, which only its owner can read.

    Raise `OSError` if the file cannot be written.

    Arguments:
        path: the path of the file.
        data: its new content.
        sync: whether the content must survive a crash of the machine from now on.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if sync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
