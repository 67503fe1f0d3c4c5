"""Read and write the small JSON files in a job's folder: `job`, `numbers` and `commits`.

A file is created or replaced in one step, so that a crash never leaves a part of its content. Its
last entry is a checksum of the others. Files of Penstock 0.1 have no checksum, and are still read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths

T = TypeVar("T")

_CHECKSUM = "checksum"


def read_record(
    files: FileSystem,
    path: Path,
    types: Mapping[str, type[T]],
    defaults: Mapping[str, T] | None = None,
    advice: str = "the file is damaged, or was edited; put it back from a backup",
) -> dict[str, T]:
    """Return the entries of the JSON object that a file contains, without its checksum.

    Arguments:
        files: the file system.
        path: the file.
        types: the type of each entry that must exist.
        defaults: the values of entries that may be missing.
        advice: the message of the `StoreError` if the file is damaged.

    Raises:
        StoreError: if the file is not a JSON object with these entries, or its checksum is wrong.
        OSError: if the file cannot be read.
    """
    record = unseal(files.read(path), types, defaults)
    if record is None:
        raise StoreError(advice, path, recoverability=Recoverability.NON_RECOVERABLE)
    return record


def seal(record: Mapping[str, object]) -> dict[str, object]:
    """Return a record of plain JSON values with its checksum as the last entry."""
    return {**record, _CHECKSUM: _digest(record)}


def unseal(
    data: bytes, types: Mapping[str, type[T]], defaults: Mapping[str, T] | None = None
) -> dict[str, T] | None:
    """Return the entries of a JSON object without its checksum; None if it is damaged.

    Arguments:
        data: the JSON text.
        types: the type of each entry that must exist.
        defaults: the values of entries that may be missing.
    """
    try:
        stored: dict[str, T] = json.loads(data)
        checksum = stored.pop(_CHECKSUM, None)
        # If the name of the checksum is damaged, the file must not pass for one without checksum.
        # So such a file has no entries but those that Penstock 0.1 wrote.
        whole = stored.keys() <= types.keys() if checksum is None else checksum == _digest(stored)
        record = {**(defaults or {}), **stored}
        if whole and all(type(record[key]) is type_ for key, type_ in types.items()):
            return record
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _digest(record: Mapping[str, object]) -> str:
    return hashlib.blake2b(json.dumps(record).encode(), digest_size=16).hexdigest()


def _write(files: FileSystem, path: Path, record: Mapping[str, object]) -> Path:
    """Write a record durably to a temporary file, and return the path of that file."""
    temporary = JobPaths.temporary(path, os.getpid())
    files.write(temporary, json.dumps(seal(record)).encode() + b"\n")
    files.sync(temporary)
    return temporary


def replace_record(files: FileSystem, path: Path, record: Mapping[str, object]) -> None:
    """Write a record durably, and replace the file if it exists."""
    files.rename(_write(files, path, record), path)
    files.sync(path.parent)


def create_record(files: FileSystem, path: Path, record: Mapping[str, object]) -> None:
    """Write a record durably; do nothing if the file exists."""
    temporary = _write(files, path, record)
    # Another process may create the same file at this moment. The first record stays.
    with suppress(FileExistsError):
        files.link(temporary, path)
    files.remove(temporary)
    files.sync(path.parent)
