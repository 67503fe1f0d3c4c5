"""Record which snapshot numbers were given out, and which snapshot was published last.

With this record, Penstock detects that the newest manifest was lost. To publish a snapshot, the
JobManager first makes the manifest durable, then the record, and then commits the output. After a
crash, the newest manifest may therefore be newer than the record. If the record is newer than all
manifests, a manifest was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import SnapshotNumber
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import read_record, replace_record


class NumberRecord:
    """Reads and writes the file `numbers` of a job's folder.

    All methods raise `OSError` if the file cannot be read or written.

    Arguments:
        files: the file system.
        paths: the paths in the job's folder.
    """

    def __init__(self, files: FileSystem, paths: JobPaths) -> None:
        self._files = files
        self._path = paths.numbers

    def require(self) -> None:
        """Raise a `StoreError` if the file is missing or damaged."""
        self._read()

    @property
    def published(self) -> int:
        """The number of the newest published snapshot; 0 if the file does not exist."""
        if not self._files.exists(self._path):
            return 0
        number: int = self._read()["published"]
        return number

    @property
    def highest_published(self) -> int:
        """The highest number that was ever published; 0 if the file does not exist.

        It does not fall when a snapshot is removed.
        """
        if not self._files.exists(self._path):
            return 0
        record = self._read()
        number: int = max(record["published"], record["highest_removed"])
        return number

    def reserve(self, count: int, least: int) -> range:
        """Reserve `count` new numbers durably, and return them.

        Arguments:
            count: the number of snapshot numbers to reserve.
            least: the lowest snapshot number that may be returned.
        """
        record = self._read()
        first = max(record["next"], least)
        self._replace({**record, "next": first + count})
        return range(first, first + count)

    def reserve_below(self, number: int) -> None:
        """Record durably that all numbers below `number` were given out elsewhere."""
        record = self._read()
        if record["next"] < number:
            self._replace({**record, "next": number})

    def publish(self, number: int) -> None:
        """Record that a snapshot was published, unless a newer one is recorded."""
        record = self._read()
        if record["published"] < number:
            self._replace({**record, "published": number})

    def withdraw(self, number: int, before: int) -> None:
        """Record `before` as the newest published snapshot if `number` is recorded now.

        The caller is about to remove snapshot `number`.
        """
        record = self._read()
        if record["published"] == number:
            highest = max(record["highest_removed"], number)
            self._replace({**record, "published": before, "highest_removed": highest})

    def lost(self, published: Callable[[], Collection[int]]) -> SnapshotNumber | None:
        """Return the number of the newest snapshot if its manifest was lost, else None.

        Arguments:
            published: a function that returns the numbers of all snapshots with a manifest.
        """
        recorded = 0
        while True:
            # A JobManager may publish a snapshot and remove older ones meanwhile. So a manifest is
            # lost only if the record has not changed after the manifests were listed.
            again = self.published
            if max(published(), default=0) >= again:
                return None
            if again == recorded:
                return SnapshotNumber(recorded)
            recorded = again

    def _read(self) -> dict[str, int]:
        if not self._files.exists(self._path):
            raise StoreError(
                "the record of snapshot numbers is missing, so numbers might be used twice; "
                "put it back, or use another folder",
                self._path,
            )
        # Penstock 0.1 recorded neither the newest published snapshot nor the removed ones.
        types = {"next": int, "published": int, "highest_removed": int}
        defaults = {"published": 0, "highest_removed": 0}
        return read_record(self._files, self._path, types, defaults)

    def _replace(self, record: dict[str, int]) -> None:
        replace_record(self._files, self._path, record)
