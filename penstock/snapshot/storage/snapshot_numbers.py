"""Record the snapshot numbers that were given out, and the newest published snapshot.

With the record of published snapshots, the loss of the newest manifest is detected. The order is:
manifest durable, record durable, output committed. So the record may be behind the manifests after
a crash, and is ahead of them only if a manifest was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import SnapshotNumber
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import read_record, replace_record

__all__ = ["NumberRecord"]


class NumberRecord:
    """The file `numbers` of a job's folder. All methods may also raise `OSError`.

    Arguments:
        files: the file system.
        paths: of the job's folder.
    """

    def __init__(self, files: FileSystem, paths: JobPaths) -> None:
        self._files = files
        self._path = paths.numbers

    def require(self) -> None:
        """Raise `StoreError` if the record is missing or damaged."""
        self._read()

    def reserve(self, count: int, least: int) -> range:
        """Give out `count` new numbers from `least` on, durably."""
        record = self._read()
        first = max(record["next"], least)
        self._replace({**record, "next": first + count})
        return range(first, first + count)

    def publish(self, number: int) -> None:
        """Record that a snapshot was published, if it is the newest."""
        record = self._read()
        if record["published"] < number:
            self._replace({**record, "published": number})

    def withdraw(self, number: int, before: int) -> None:
        """Record that a snapshot is about to be removed; the newest will be `before`."""
        record = self._read()
        if record["published"] == number:
            self._replace({**record, "published": before})

    def lost(self, published: Callable[[], Collection[int]]) -> SnapshotNumber | None:
        """Return the number of the newest snapshot if its manifest is gone, else None.

        Arguments:
            published: lists the numbers of all manifests.
        """
        if not self._files.exists(self._path):
            return None
        recorded = 0
        while True:
            # Retention may remove a snapshot as soon as a newer one is recorded: read again.
            again: int = self._read()["published"]
            if max(published(), default=0) >= again:
                return None
            if again == recorded:
                return SnapshotNumber(recorded)
            recorded = again

    def _read(self) -> dict[str, Any]:
        if not self._files.exists(self._path):
            raise StoreError(
                "the record of snapshot numbers is missing, so numbers might be used twice; "
                "put it back, or use another folder",
                self._path,
            )
        record = read_record(self._files, self._path, "next", int)
        # Version 0.1 recorded no published snapshot.
        if not isinstance(record.setdefault("published", 0), int):
            raise StoreError("the file is damaged; put it back from a backup", self._path)
        return record

    def _replace(self, record: dict[str, Any]) -> None:
        replace_record(self._files, self._path, record)
