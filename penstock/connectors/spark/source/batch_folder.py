"""Pass the batches of a streaming query to a job in a folder.

    lock            the lock file; the program that runs the query holds the lock
    spark/          Spark's checkpoint of the query
    query           the id of the query that wrote the batches; written before the first batch
    batches/N/      batch N, which is a pin (`pin.py`)
    dealt           the number of the first batch not yet given to the readers; written by the job
    removed         the number below which batches may have been removed; written by the job
    ended, failed   the report that the query has ended or failed; written by the program

If a process is killed at any point, no row is lost or read twice. Four rules ensure this:

* A batch is complete and durable under its number before Spark's callback returns.
* A batch is never written again if its number exists or is below `removed`. Spark repeats a batch
  if it could not record the end of the batch. The repeated batch has the same rows.
* `query` is durable before the first batch appears. When the job is resumed, `query` shows whether
  Spark's checkpoint belongs to these batches.
* `removed` is durable before the first batch below this number is removed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from penstock.connectors.spark.source.pin import remove_pin
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file


class BatchFolder:
    """The folder in which one streaming query passes its batches to the job.

    Arguments:
        folder: the path of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    @property
    def checkpoint(self) -> Path:
        """The folder of Spark's checkpoint of the query."""
        return self.folder / "spark"

    @staticmethod
    def name(number: int) -> str:
        """Return the path of a batch, relative to the folder of the query."""
        return f"batches/{number:012d}"

    def batch(self, number: int) -> Path:
        """Return the path of the folder that contains a batch."""
        return self.folder / self.name(number)

    def create(self) -> None:
        """Create the folder of the query if it does not exist."""
        make_folders(self.folder / "batches")

    # ---- Methods for the program that runs the query

    def lock(self) -> None:
        """Lock the folder for this process.

        Raises:
            StoreError: if another process holds the lock.
        """
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(
                "another program runs the streaming query of this job; stop it first", self.folder
            ) from error
        self._lock = descriptor

    def unlock(self) -> None:
        """Release this process's lock on the folder, if it has one."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def has(self, number: int) -> bool:
        """Return whether a batch was ever published, even if it has been removed since."""
        # The order of the two checks matters: the job updates `removed` before it removes a batch.
        return self.batch(number).exists() or number < self.removed

    @property
    def query(self) -> str | None:
        """The id of the query that wrote the batches; None before the first batch."""
        return self.reported("query")

    def record_query(self, query: str | None) -> None:
        """Write the id of the query to the folder, and sync it to disk."""
        if query is not None and query != self.query:
            _replace(self.folder / "query", query, durable=True)

    def unread(self) -> int:
        """Return the number of batches that the job has not given to its readers yet."""
        dealt = self._number("dealt")
        return sum(number >= dealt for number in self.numbers())

    def report(self, what: str, text: str = "") -> None:
        """Report to the job that the query has ended or failed.

        Arguments:
            what: "ended" or "failed".
            text: the text of the failure.
        """
        _replace(self.folder / what, text)

    def withdraw_reports(self) -> None:
        """Remove the reports that the query has ended or failed, because it runs again."""
        for what in ("ended", "failed"):
            with suppress(FileNotFoundError):
                (self.folder / what).unlink()

    # ---- Methods for the job

    @property
    def removed(self) -> int:
        """The number below which batches may have been removed."""
        return self._number("removed")

    def numbers(self) -> list[int]:
        """Return the numbers of the batches in the folder, in ascending order."""
        try:
            names = [path.name for path in (self.folder / "batches").iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def reported(self, what: str) -> str | None:
        """Return the text of a report about the query; None if there is no such report.

        Arguments:
            what: the name of the report's file, such as "ended" or "failed".
        """
        try:
            return (self.folder / what).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def record_dealt(self, number: int) -> None:
        """Record that the job has given all batches below `number` to its readers."""
        # The file is not synced. After a crash of the machine, the job writes it again.
        _replace(self.folder / "dealt", str(number))

    def remove_below(self, number: int) -> None:
        """Remove all batches below `number`, because no snapshot needs them."""
        old = [other for other in self.numbers() if other < number]
        if not old:
            return
        if number > self.removed:
            _replace(self.folder / "removed", str(number), durable=True)
        for other in old:
            remove_pin(self.batch(other))

    def _number(self, name: str) -> int:
        text = self.reported(name)
        return int(text) if text else 0


def _replace(path: Path, text: str, durable: bool = False) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    replace_file(path, text.encode(), temporary, durable=durable)
