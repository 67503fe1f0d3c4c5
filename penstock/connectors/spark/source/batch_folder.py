"""Hand the batches of a streaming query to a job, numbered in a folder.

    lock            held by the program that runs the query
    spark/          the query's own checkpoint
    query           the id of the query whose batches these are; written with the first
    batches/N/      batch N, a pin (`pin.py`)
    dealt           the first batch that the job has not handed to its readers; written by the job
    removed         batches below this number were removed, or may be; written by the job
    ended, failed   the query has ended or failed; written by the program

No row is lost or read twice, at whatever point a process is killed, because of these invariants:

* A batch appears whole, durably and under its number before Spark's callback returns.
* A number that exists or is below `removed` is never written again. Spark repeats a batch whose
  end it could not record, and repeats it with the same rows.
* `query` is durable before the first batch appears. When the job is resumed, it shows whether the
  checkpoint is the one that numbered these batches.
* `removed` is durable before the first batch below it is touched.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from penstock.connectors.spark.source.pin import remove_pin
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file

__all__ = ["BatchFolder"]


class BatchFolder:
    """The folder of one streaming query.

    Arguments:
        folder: its path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    @property
    def checkpoint(self) -> Path:
        """The folder of Spark's checkpoint."""
        return self.folder / "spark"

    @staticmethod
    def name(number: int) -> str:
        """Return the path of a batch below this folder."""
        return f"batches/{number:012d}"

    def batch(self, number: int) -> Path:
        """Return the folder of a batch."""
        return self.folder / self.name(number)

    def create(self) -> None:
        """Create the folder, if there is none."""
        make_folders(self.folder / "batches")

    # ---- the program's side

    def lock(self) -> None:
        """Lock the folder for this process. Raises `StoreError` if another has it."""
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
        """Unlock the folder; do nothing if it is not locked."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def has(self, number: int) -> bool:
        """Return whether a batch was published; it may have been removed since."""
        # The order matters: a batch is recorded as removed before it is removed.
        return self.batch(number).exists() or number < self.removed

    @property
    def query(self) -> str | None:
        """Return the id of the query that wrote the batches; None if not recorded yet."""
        return self.reported("query")

    def record_query(self, query: str | None) -> None:
        """Record durably the id of the query that writes batches here."""
        if query is not None and query != self.query:
            _replace(self.folder / "query", query, durable=True)

    def unread(self) -> int:
        """Return the number of batches that were not handed to readers yet."""
        dealt = self._number("dealt")
        return sum(number >= dealt for number in self.numbers())

    def report(self, what: str, text: str = "") -> None:
        """Report to the job that the query has `ended` or `failed`."""
        _replace(self.folder / what, text)

    def withdraw_reports(self) -> None:
        """Withdraw both reports: the query runs again."""
        for what in ("ended", "failed"):
            with suppress(FileNotFoundError):
                (self.folder / what).unlink()

    # ---- the job's side

    @property
    def removed(self) -> int:
        """The number below which batches may have been removed."""
        return self._number("removed")

    def numbers(self) -> list[int]:
        """Return the numbers of the existing batches, in order."""
        try:
            names = [path.name for path in (self.folder / "batches").iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def reported(self, what: str) -> str | None:
        """Return the report that the query has `ended` or `failed`; None without one."""
        try:
            return (self.folder / what).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def record_dealt(self, number: int) -> None:
        """Record that all batches below `number` were handed to readers."""
        # It need not be durable: after a crash of the machine, the job records it again.
        _replace(self.folder / "dealt", str(number))

    def remove_below(self, number: int) -> None:
        """Remove the batches that no snapshot needs."""
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
