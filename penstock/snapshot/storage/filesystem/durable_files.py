"""Sync, write and replace files of the local disk so that they outlive a power failure.

A crash can lose the content of a file, or its name in its folder, or both. The docstring of each
function names the one that is durable when the function returns. All functions block, and raise
`OSError` if the operation fails.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OpenFile(Protocol):
    """An open file of text or bytes."""

    def flush(self) -> None:
        """Write the buffer to the file."""

    def fileno(self) -> int:
        """Return the file descriptor."""


def sync_file(file: OpenFile) -> None:
    """Make the content of an open file durable, but not its name in the folder."""
    file.flush()
    os.fsync(file.fileno())


def write_file(path: Path, data: bytes) -> None:
    """Create a file and make its content durable, but not its name in the folder.

    Raises:
        FileExistsError: if the file exists already.
    """
    with path.open("xb") as file:
        file.write(data)
        sync_file(file)


def replace_file(path: Path, data: bytes, temporary: Path, *, durable: bool = True) -> None:
    """Replace the content of a file in one step.

    Arguments:
        path: the file; it need not exist.
        data: the new content.
        temporary: the path of a temporary file for the new content, in the same folder. If that
            file exists, for example after a crash, it is overwritten.
        durable: whether to make the content and the name durable.
    """
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            sync_file(file)
    temporary.replace(path)
    if durable:
        sync_path(path.parent)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parent folders, and make their names durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_path(path.parent)
