"""Define how a source reads a table with a log: its files, and its commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import JobError, Recoverability

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableVersion:
    """A version of a table.

    Arguments:
        number: the version of a Delta table, or the id of an Iceberg snapshot.
        table: the id of the table. A table that takes its place has another one.
        schema: the id of the schema that is read, if the format has one; otherwise 0.
    """

    number: int
    table: str
    schema: int = 0


@dataclass(frozen=True)
class TableCommit:
    """Describes the change of a table by one commit.

    Arguments:
        number: the version after the commit.
        files: the payloads of splits: one for each data file that was added.
        rewrite: a text that says why the commit is more than added rows; "" if it is not.
    """

    number: int
    files: list[dict[str, Any]]
    rewrite: str = ""


class TableHistory(ABC):
    """Reads the versions of one table. It is sent to the workers, so it holds nothing open.

    A payload describes a data file: it has `rows`, the number of its rows, or None.
    """

    @abstractmethod
    def find(self, number: int | None, time: datetime | None) -> TableVersion:
        """Return a version: by its number, or the newest at a time, or the newest.

        Raises:
            JobError: if there is no such version, or the table cannot be read.
        """

    @abstractmethod
    def files(self, version: TableVersion) -> list[dict[str, Any]]:
        """Return the payloads of the data files of a version.

        Raises:
            JobError: if a file of the version cannot be read without Spark.
        """

    @abstractmethod
    def since(self, version: TableVersion) -> Iterator[TableCommit]:
        """Yield the commits after a version, the oldest first.

        Raises:
            JobError: if the commits are no longer there, or another table has taken its place.
        """

    @abstractmethod
    def batches(self, payload: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file.

        Raises:
            JobError: if the file was removed, or cannot be read.
        """


def unreadable_table(message: str) -> JobError:
    """Return the error for a table that a restart does not make readable."""
    return JobError(message, recoverability=Recoverability.NON_RECOVERABLE)
