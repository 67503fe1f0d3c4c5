"""Read and write the small JSON files in a job's folder.

A file is created or replaced in one step, so that a crash never leaves a part of its content.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["create_record", "read_record", "replace_record"]


def read_record(
    files: FileSystem,
    path: Path,
    key: str,
    type_: type,
    advice: str = "the file is damaged; put it back from a backup",
) -> dict[str, Any]:
    """Return the JSON object that a file contains.

    Arguments:
        files: the file system.
        path: the file.
        key: the key of an entry that must exist.
        type_: the type that the entry must have.
        advice: the message of the `StoreError`.

    Raises:
        StoreError: if the file is not JSON, or the entry is missing or has another type.
        OSError: if the file cannot be read.
    """
    data = files.read(path)
    try:
        record: dict[str, Any] = json.loads(data)
        if isinstance(record[key], type_) and not isinstance(record[key], bool):
            return record
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise StoreError(advice, path)


def _write(files: FileSystem, path: Path, record: dict[str, Any]) -> Path:
    """Write a record durably to a temporary file, and return the path of that file."""
    temporary = JobPaths.temporary(path, os.getpid())
    files.write(temporary, json.dumps(record).encode() + b"\n")
    files.sync(temporary)
    return temporary


def replace_record(files: FileSystem, path: Path, record: dict[str, Any]) -> None:
    """Write a record durably, and replace the file if it exists."""
    files.rename(_write(files, path, record), path)
    files.sync(path.parent)


def create_record(files: FileSystem, path: Path, record: dict[str, Any]) -> None:
    """Write a record durably; do nothing if the file exists."""
    temporary = _write(files, path, record)
    # Another process may create the same file at this moment. The first record stays.
    with suppress(FileExistsError):
        files.link(temporary, path)
    files.remove(temporary)
    files.sync(path.parent)
