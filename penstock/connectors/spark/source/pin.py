"""A pin holds the rows of a table as they were at one moment, in a folder of the job's own.

    pin.json        describes the pin; a folder is a pin because it has this file
    data/….parquet  the rows

A pin is complete and durable when its folder appears under its name (`pin_writer.py`). It never
changes. Its splits are listed in `pin.json`, so that a position always means the same rows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = [
    "Pin",
    "PinnedSplit",
    "is_pin_id",
    "load_pin",
    "new_pin_id",
    "remove_pin",
    "write_record",
]

_FORMAT = 1
_RECORD = "pin.json"
#: Number of rows up to which row groups of one file form one split.
SPLIT_ROWS = 128 * 1024


@dataclass(frozen=True)
class PinnedSplit:
    """Row groups of one file, read by one reader.

    Arguments:
        file: its name in the folder `data`.
        first_group, end_group: the row groups from `first_group` up to `end_group`, exclusive.
        rows: number of their rows.
    """

    file: str
    first_group: int
    end_group: int
    rows: int


@dataclass(frozen=True)
class Pin:
    """A complete pin.

    Arguments:
        folder: its path.
        linked: whether its files are links to the table's, and not written for the pin.
        schema: the columns and their Spark types.
        splits: all its splits, in order.
        files: by file, its size in bytes and its time of change in nanoseconds.
    """

    folder: Path
    linked: bool
    schema: pa.Schema
    splits: tuple[PinnedSplit, ...]
    files: dict[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(split.rows for split in self.splits)

    def path(self, split: PinnedSplit) -> Path:
        """Return the file of a split.

        Raises:
            StoreError: if the file is gone or has changed.
        """
        path = self.folder / "data" / split.file
        try:
            status = path.stat()
        except OSError as error:
            raise StoreError(
                f"a pinned file cannot be read: {error.strerror}; every worker must see the job's "
                f"folder, and nothing in it may be removed while the job can be resumed",
                path,
            ) from error
        if (status.st_size, status.st_mtime_ns) != self.files[split.file]:
            raise StoreError(
                "a pinned file was written to in place, so its rows may have changed: restore it, "
                "or start the job afresh",
                path,
            )
        return path


def new_pin_id() -> str:
    """Return a name for a pin, which sorts behind earlier ones."""
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"


def is_pin_id(name: str) -> bool:
    """Return whether `new_pin_id` made this name."""
    return re.fullmatch(r"[0-9]{13,}-[0-9a-f]{8}", name) is not None


def load_pin(folder: Path) -> Pin:
    """Read a pin's record.

    Raises:
        StoreError: if there is no pin, or if it has a later format.
    """
    import pyarrow as pa

    path = folder / _RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the rows that the job reads were pinned here, and the pin cannot be read: {error}; "
            f"restore it, or start the job afresh",
            path,
        ) from error
    if record["format"] > _FORMAT:
        raise StoreError(f"the pin has format {record['format']}: upgrade Penstock", path)
    return Pin(
        folder,
        record["linked"],
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"]))),
        tuple(PinnedSplit(*split) for split in record["splits"]),
        {name: (size, mtime) for name, size, mtime in record["files"]},
    )


def write_record(
    folder: Path, linked: bool, schema: pa.Schema, footers: dict[str, pq.FileMetaData]
) -> None:
    """Write the record of a new pin, durably.

    Arguments:
        folder: of the pin; its files are in `data`.
        linked: whether its files are links to the table's.
        schema: the columns and their Spark types.
        footers: of its files, by name.
    """
    files = []
    for name in footers:
        status = (folder / "data" / name).stat()
        files.append([name, status.st_size, status.st_mtime_ns])
    record = {
        "format": _FORMAT,
        "linked": linked,
        "columns": {field.name: str(field.type) for field in schema},
        "schema": base64.b64encode(schema.serialize()).decode("ascii"),
        "splits": [list(vars(split).values()) for split in _splits(footers)],
        "files": files,
    }
    with (folder / _RECORD).open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        sync_file(file)
    sync_path(folder)


def _splits(footers: dict[str, pq.FileMetaData]) -> Iterator[PinnedSplit]:
    for name, footer in footers.items():
        first, rows = 0, 0
        for group in range(footer.num_row_groups):
            more = footer.row_group(group).num_rows
            if rows and rows + more > SPLIT_ROWS:
                yield PinnedSplit(name, first, group, rows)
                first, rows = group, 0
            rows += more
        if rows:
            yield PinnedSplit(name, first, footer.num_row_groups, rows)


def remove_pin(folder: Path) -> None:
    """Remove a pin, beginning with its record: without it, the rest is not a pin."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _RECORD).unlink()
    shutil.rmtree(folder, ignore_errors=True)
