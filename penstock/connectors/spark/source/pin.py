"""Store the rows that a table had at one moment in a folder of the job, called a pin.

    pin.json        the description of the pin; a folder with this file is a pin
    data/….parquet  the rows

A pin is complete and durable as soon as its folder has its final name (`pin_writer.py`). A pin
never changes. `pin.json` lists the splits of the pin, so a position in a split always means the
same rows.
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
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path
from penstock.snapshot.storage.json_records import seal, unseal

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_FORMAT = 1
_RECORD = "pin.json"
_TYPES = {
    "format": int,
    "linked": bool,
    "columns": dict,
    "schema": str,
    "splits": list,
    "files": list,
}
#: The largest number of rows in a split of several row groups. A larger row group is one split.
SPLIT_ROWS = 128 * 1024


@dataclass(frozen=True)
class PinnedSplit:
    """A split of a pin: consecutive row groups of one file.

    Arguments:
        file: the name of the file in the folder `data`.
        first_group, end_group: the index of the first row group, and the index after the last one.
        rows: the number of rows in these row groups.
    """

    file: str
    first_group: int
    end_group: int
    rows: int


@dataclass(frozen=True)
class Pin:
    """A complete pin: the stored rows of a table at one moment.

    Arguments:
        folder: the path of the pin's folder.
        linked: whether the files are hard links to files of the table; otherwise Spark wrote them.
        schema: the Arrow schema of the columns.
        splits: all splits of the pin, in order.
        files: the size of each file in bytes and its modification time in nanoseconds, keyed by
            the name of the file.
    """

    folder: Path
    linked: bool
    schema: pa.Schema
    splits: tuple[PinnedSplit, ...]
    files: dict[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        """The number of rows in the pin."""
        return sum(split.rows for split in self.splits)

    def path(self, split: PinnedSplit) -> Path:
        """Return the path of the file that contains a split.

        Raises:
            StoreError: if the file is missing or was changed after it was pinned.
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
    """Return a name for a new pin; in sorted order it comes after the names of older pins."""
    return f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"


def is_pin_id(name: str) -> bool:
    """Return whether a name has the form that `new_pin_id` returns."""
    return re.fullmatch(r"[0-9]{13,}-[0-9a-f]{8}", name) is not None


def load_pin(folder: Path) -> Pin:
    """Load a pin from its folder by reading `pin.json`.

    Raises:
        StoreError: if `pin.json` cannot be read, or if its format is newer than this version of
            Penstock supports.
    """
    import pyarrow as pa

    path = folder / _RECORD
    try:
        record: dict[str, Any] | None = unseal(path.read_bytes(), _TYPES)
    except OSError as error:
        raise _unreadable(str(error), path) from error
    if record is None:
        damaged = _unreadable("it is damaged", path)
        damaged.recoverability = Recoverability.NON_RECOVERABLE
        raise damaged
    if record["format"] > _FORMAT:
        raise StoreError(f"the pin has format {record['format']}: upgrade Penstock", path)
    return Pin(
        folder,
        record["linked"],
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"]))),
        tuple(PinnedSplit(*split) for split in record["splits"]),
        {name: (size, mtime) for name, size, mtime in record["files"]},
    )


def _unreadable(problem: str, path: Path) -> StoreError:
    return StoreError(
        f"the rows that the job reads were pinned here, and the pin cannot be read: {problem}; "
        f"restore it, or start the job afresh",
        path,
    )


def write_record(
    folder: Path, linked: bool, schema: pa.Schema, footers: dict[str, pq.FileMetaData]
) -> None:
    """Write `pin.json`, which describes a new pin, and sync it to disk.

    Arguments:
        folder: the folder of the pin. The Parquet files are in its folder `data`.
        linked: whether the files are hard links to files of the table.
        schema: the Arrow schema of the columns.
        footers: the Parquet footer of each file, keyed by the name of the file.
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
        json.dump(seal(record), file, indent=1)
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
    """Remove the folder of a pin.

    `pin.json` is removed first. If the process dies before the rest is removed, the folder does not
    count as a pin.
    """
    with contextlib.suppress(FileNotFoundError):
        (folder / _RECORD).unlink()
    shutil.rmtree(folder, ignore_errors=True)
