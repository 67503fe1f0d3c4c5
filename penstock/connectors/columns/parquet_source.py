"""A source of the rows of Parquet files, without Spark.

The enumerator lists the files when the job starts, and divides them at row groups. A file must not
change while the job reads it. When a reader opens a file, it compares the size, the modification
time, and a checksum of the first and last bytes. The last bytes of a Parquet file describe all its
columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.columns.parquet_files import (
    ParquetReader,
    check_column_names,
    check_columns,
    open_parquet,
    parquet_splits,
)
from penstock.connectors.file_source import ends_of, found_files
from penstock.connectors.file_watch import FoundFile
from penstock.connectors.files_source import FilesSource, unreadable
from penstock.connectors.folders import list_files, local_path
from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.columns.arrow import check_schema, require_pyarrow
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import ReaderContext, SourceReader, Split

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: The number of bytes that are read from a file at a time, for each column of a row group.
_READ_BYTES = 1 << 20


class ParquetSource(FilesSource):
    """Reads the rows of Parquet files as columns, exactly once.

    A path names a file, a folder, or a glob such as `sales/**/*.parquet`, as for `FileSource`.
    Names that begin with `_` or `.` are skipped, so a folder that a `ParquetSink` writes is read
    without its uncommitted files. With parallelism 1, rows come in the order of the files' names.

    Arguments:
        paths: a path or a list of paths, on a file system that all workers see.
        columns: the names of the columns to read; None for all columns.
        schema: a `pyarrow.Schema`, or a dict of names and types, to which the rows of each file are
            cast. It is needed if files have different types for a column.
        split_rows: a file with at least this number of rows is divided at its row groups, so that
            several readers can share it.

    Raises:
        GraphError: if pyarrow is not installed, or an argument is wrong.

    Examples:
        >>> import pyarrow
        >>> import pyarrow.parquet
        >>> table = pyarrow.table({"user": ["ann"], "amount": [5]})
        >>> pyarrow.parquet.write_table(table, "sales.parquet")
        >>> sales = env.from_source(ParquetSource("sales.parquet", columns=["amount"]))
        >>> list(sales.map(lambda row: row["amount"]).execute_and_collect())
        [5]
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        schema: Any = None,
        split_rows: int = 1 << 20,
    ) -> None:
        require_pyarrow("ParquetSource")
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise GraphError("a Parquet source needs at least one path")
        self.schema = check_schema("ParquetSource", schema)
        self.columns = check_column_names(self.schema, columns)
        self.paths = [local_path(path) for path in given]
        self.split_rows = whole_number("split_rows", split_rows, 1)
        super().__init__(discovery_seconds=None, quiet_seconds=0.0)

    @property
    def location(self) -> object:
        """The first of the paths."""
        return self.paths[0]

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the rows of these splits."""
        del context
        return ParquetReader(self.columns, self.schema, _open_unchanged, blocking=False)

    def list_files(self) -> Iterator[FoundFile]:
        """Return the files that each path names, sorted by path."""
        return found_files(self.paths)

    def watch_files(self) -> Iterator[FoundFile]:
        """Return the files; the source does not watch its folders."""
        return self.list_files()

    def splits_of(self, found: FoundFile) -> list[Split]:
        """Return the splits of a file: its row groups, some together."""
        path = found.path
        payload = {
            "path": str(path),
            "size": found.size,
            "mtime_ns": found.version,
            "ends": ends_of(path, found.size),
        }
        with _open(path) as file:
            return list(parquet_splits(path, file, self.split_rows, payload))

    def validate(self) -> None:
        """Check that each path names at least one file, and that the first file has the columns.

        Raises:
            GraphError: if a path names no file, or if a file is not a Parquet file, lacks a column,
                or has a column twice.
        """
        try:
            files = [file for path in self.paths for file in list_files(path)]
            for file in files[:1]:
                with _open(file) as opened:
                    check_columns(file, opened, self.columns)
        except JobError as error:
            raise GraphError(error.message) from None


def _open(path: Path) -> pq.ParquetFile:
    return open_parquet(path, path, buffer_size=_READ_BYTES)


def _open_unchanged(payload: dict[str, Any]) -> pq.ParquetFile:
    """Open the file of a split, if it has not changed since the enumerator listed it.

    Raises:
        JobError: if the file is missing, or was changed.
    """
    path = Path(payload["path"])
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    size = payload["size"]
    if status.st_size == size and status.st_mtime_ns == payload["mtime_ns"]:
        return _open(path)
    if status.st_size != size or ends_of(path, size) != payload["ends"]:
        raise JobError(
            f"{path} was changed since the job listed it, so its rows may have changed: restore "
            f"it, or start the job afresh"
        )
    return _open(path)
