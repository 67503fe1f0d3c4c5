"""Sync, write and replace files of the local disk so that they outlive a power failure.

A crash can lose the content of a file and its name in its folder, independently. Each function
documents which of them is durable when it returns. All of them block and raise `OSError`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

__all__ = ["make_folders", "replace_file", "sync_file", "sync_path", "write_file"]


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    # O_NONBLOCK: opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(file: IO[Any]) -> None:
    """Make all that was written to an open file durable; not its name."""
    file.flush()
    os.fsync(file.fileno())


def write_file(path: Path, data: bytes) -> None:
    """Create a file and make its content durable; not its name.

    Raises `FileExistsError` if there is one of that name.
    """
    with path.open("xb") as file:
        file.write(data)
        sync_file(file)


def replace_file(path: Path, data: bytes, temporary: Path, *, durable: bool = True) -> None:
    """Replace the content of a file in one step.

    Arguments:
        path: the file; it need not exist.
        data: its new content.
        temporary: path for the new content until it is complete, in the same folder. A leftover of
            a crash is overwritten.
        durable: whether content and name survive a crash of the machine.
    """
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            sync_file(file)
    temporary.replace(path)
    if durable:
        sync_path(path.parent)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it; their names are durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_path(path.parent)
