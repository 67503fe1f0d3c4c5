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

from penstock.connectors.columns.arrow_cursor import ArrowCursor
from penstock.connectors.file_source import ends_of, unreadable
from penstock.connectors.folders import list_files, local_path
from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.columns.arrow import check_schema, require_pyarrow
from penstock.dataflow.columns.arrow_records import fit_schema
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: The largest number of rows that a reader decodes at once.
_READ_ROWS = 1 << 16
#: The number of bytes that are read from a file at a time, for each column of a row group.
_READ_BYTES = 1 << 20


class ParquetSource(Source):
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

    has_event_times = False

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
        if columns is None and self.schema is not None:
            columns = self.schema.names
        elif isinstance(columns, str) or (columns is not None and not list(columns)):
            raise GraphError(f"columns is a list of names, not {columns!r}")
        self.columns = None if columns is None else list(columns)
        self.paths = [local_path(path) for path in given]
        self.split_rows = whole_number("split_rows", split_rows, 1)

    @property
    def location(self) -> object:
        """The first of the paths."""
        return self.paths[0]

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split for each file, or for parts of it."""
        del parallelism
        return _ParquetEnumerator(self.paths, self.split_rows)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the rows of these splits."""
        del context
        return _ParquetReader(self.columns, self.schema)

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
                    _check_columns(file, opened, self.columns)
        except JobError as error:
            raise GraphError(error.message) from None


class _ParquetEnumerator(ListEnumerator):
    """Lists the files when a run starts without a snapshot, and assigns their splits."""

    def __init__(self, paths: Sequence[Path], split_rows: int) -> None:
        super().__init__()
        self._paths, self._split_rows = paths, split_rows

    def start(self) -> None:
        # The paths are keys of a dict, so that a file is read once even if two paths contain it.
        files = {path: None for given in self._paths for path in list_files(given)}
        self.splits = [split for path in files for split in self._splits_of(path)]

    def _splits_of(self, path: Path) -> Iterator[Split]:
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        whole = {
            "path": str(path),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "ends": ends_of(path, status.st_size),
        }
        with _open(path) as file:
            metadata = file.metadata
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        first, rows = 0, 0
        for group, size in enumerate(sizes):
            rows += size
            if rows >= self._split_rows or group == len(sizes) - 1:
                if rows:
                    groups = {"first": first, "end": group + 1, "rows": rows}
                    yield Split(f"{path}:{first}", {**whole, **groups})
                first, rows = group + 1, 0


class _ParquetReader(SourceReader):
    """Reads the rows of a split.

    Arguments:
        columns: the names of the columns to read; None for all columns.
        schema: the schema to which the rows are cast, or None.
    """

    def __init__(self, columns: list[str] | None, schema: pa.Schema | None) -> None:
        self._columns, self._schema = columns, schema
        self._path = Path()
        self._file: pq.ParquetFile | None = None
        self._cursor: ArrowCursor | None = None

    def open(self, split: Split, position: Any) -> None:
        self.close()
        payload = split.payload
        self._path = path = Path(payload["path"])
        _check_unchanged(path, payload)
        self._file = file = _open(path)
        _check_columns(path, file, self._columns)
        skip, first = position or 0, payload["first"]
        passed = 0
        while first < payload["end"]:
            rows = file.metadata.row_group(first).num_rows
            if passed + rows > skip:
                break
            passed, first = passed + rows, first + 1
        groups = range(first, payload["end"])
        # The cursor counts the rows of the omitted groups as emitted, so it does not skip them
        # again.
        self._cursor = ArrowCursor(self._batches(file, groups), skip, payload["rows"], passed)

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        try:
            return self._cursor.read(max_records)
        except (OSError, ValueError) as error:  # the errors of pyarrow are among them
            raise JobError(f"{self._path} cannot be read: {error}") from error

    def close(self) -> None:
        self._cursor = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _batches(self, file: pq.ParquetFile, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
        names = self._columns
        # Arrow interprets the name "a.b" as the field b of a column a. So if a name contains a dot,
        # all columns are read.
        dotted = names is None or any("." in name for name in names)
        for batch in file.iter_batches(
            _READ_ROWS,
            row_groups=list(groups),
            columns=None if dotted else names,
            use_threads=False,
        ):
            if names is not None:
                batch = batch.select(names)
            yield batch if self._schema is None else fit_schema(batch, self._schema)


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us", buffer_size=_READ_BYTES)
    except FileNotFoundError as error:
        raise unreadable(path, error) from error
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{path} is no Parquet file that can be read: {error}") from error


def _check_columns(path: Path, file: pq.ParquetFile, columns: Sequence[str] | None) -> None:
    names = file.schema_arrow.names
    for name in columns or ():
        if name not in names:
            raise JobError(f"{path} has no column {name!r}; its columns are {', '.join(names)}")
    for name in names if columns is None else columns:
        if names.count(name) > 1:
            raise JobError(f"{path} has several columns {name!r}: list others in columns=[...]")


def _check_unchanged(path: Path, payload: dict[str, Any]) -> None:
    """Check that a file has not changed since the enumerator listed it.

    Raises:
        JobError: if the file is missing, or was changed.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    size = payload["size"]
    if status.st_size == size and status.st_mtime_ns == payload["mtime_ns"]:
        return
    if status.st_size != size or ends_of(path, size) != payload["ends"]:
        raise JobError(
            f"{path} was changed since the job listed it, so its rows may have changed: restore "
            f"it, or start the job afresh"
        )
