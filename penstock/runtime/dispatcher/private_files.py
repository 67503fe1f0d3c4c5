"""Files that only this user can access, in a folder that was shared before."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["open_private", "read_private", "replace_private"]


def open_private(path: Path, flags: int) -> int:
    """Open a regular file; a link is not followed. Raises `OSError`.

    The folder may have been open to others before it became private, with links in it.
    """
    # Without O_NONBLOCK a FIFO would block until its other end is opened.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file; remove it", os.fspath(path))
    return descriptor


def read_private(path: Path) -> bytes:
    """Return the content of a regular file. Raises `OSError`."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace_private(path: Path, data: bytes) -> None:
    """Replace a file by one that only its owner can read. Raises `OSError`."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
