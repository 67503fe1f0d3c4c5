"""The meeting point of a streaming query and a job: numbered batches in a folder.

    lock            held by the program that runs the query
    spark/          the query's own checkpoint
    query           the id of the query whose batches these are; written with the first
    batches/N/      batch N, a pin (`pin.py`)
    dealt           the first batch that the job has not dealt to its readers; written by the job
    removed         batches below this number were removed, or may be; written by the job
    ended, failed   the query has ended or failed; written by the program

Invariants, on which it rests that no row is lost or read twice, whoever is killed when:

* a batch appears whole, under its number, durably, before Spark hears that it is done;
* a number that exists, or is below `removed`, is never written again: Spark may repeat a batch
  whose end it could not record, and repeats it with the same rows;
* `query` is durable before the first batch is there: who resumes sees whether the checkpoint at
  hand is the one that counts these batches;
* `removed` is durable before the first batch below it is touched.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from penstock.connectors.spark.pin import remove_pin
from penstock.dataflow.errors import StoreError
from penstock.snapshot.storage.filesystem.durable_files import make_folders, replace_file

__all__ = ["BatchFolder"]


class BatchFolder:
    """The folder of one streaming query.

    Arguments:
        folder: where it is.
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
        """A batch's name, below the stage's folder."""
        return f"batches/{number:012d}"

    def batch(self, number: int) -> Path:
        """The folder of a batch."""
        return self.folder / self.name(number)

    def make(self) -> None:
        """Make the folder, if there is none."""
        make_folders(self.folder / "batches")

    # ---- the program's side

    def lock(self) -> None:
        """Take the stage for this process; raises `StoreError` if another has it."""
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
        """Let the stage go; does nothing if it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def has(self, number: int) -> bool:
        """Whether a batch was published, though it may have been removed since."""
        # In this order: it is recorded before it is removed.
        return self.batch(number).exists() or number < self.removed

    @property
    def query(self) -> str | None:
        """The id of the query whose batches these are; None if it was not recorded yet."""
        return self.said("query")

    def bind(self, query: str | None) -> None:
        """Record, durably, whose batches these are to be."""
        if query is not None and query != self.query:
            _replace(self.folder / "query", query, durable=True)

    def unread(self) -> int:
        """How many batches wait to be dealt to readers."""
        dealt = self._number("dealt")
        return sum(number >= dealt for number in self.numbers())

    def say(self, what: str, text: str = "") -> None:
        """Tell the job that the query has `ended` or `failed`."""
        _replace(self.folder / what, text)

    def unsay(self) -> None:
        """The query runs (again)."""
        for what in ("ended", "failed"):
            with suppress(FileNotFoundError):
                (self.folder / what).unlink()

    # ---- the job's side

    @property
    def removed(self) -> int:
        """Batches below this number may be gone."""
        return self._number("removed")

    def numbers(self) -> list[int]:
        """The batches that are there, in order."""
        try:
            names = [path.name for path in (self.folder / "batches").iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def said(self, what: str) -> str | None:
        """What the program said of the query's end or failure; None if it did not."""
        try:
            return (self.folder / what).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def deal(self, number: int) -> None:
        """All batches below `number` have been dealt."""
        # Not durable: after a crash of the machine the job says it anew.
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
        text = self.said(name)
        return int(text) if text else 0


def _replace(path: Path, text: str, durable: bool = False) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    replace_file(path, text.encode(), temporary, durable=durable)
