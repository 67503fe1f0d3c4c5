"""Divide Parquet files into splits, and read the rows of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connectors.columns.arrow_cursor import ArrowCursor
from penstock.connectors.files_source import unreadable
from penstock.dataflow.columns.arrow_records import fit_schema
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import Read, SourceReader, Split

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: The largest number of rows that a reader decodes at once.
_READ_ROWS = 1 << 16


def parquet_splits(
    path: object, file: pq.ParquetFile, split_rows: int, payload: dict[str, Any]
) -> Iterator[Split]:
    """Yield the splits of a file: groups of row groups with at least `split_rows` rows.

    Arguments:
        path: the path of the file.
        file: the open file.
        split_rows: the number of rows.
        payload: the description of the file, which each split contains.
    """
    metadata = file.metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    first, rows = 0, 0
    for group, size in enumerate(sizes):
        rows += size
        if rows >= split_rows or group == len(sizes) - 1:
            if rows:
                groups = {"first": first, "end": group + 1, "rows": rows}
                yield Split(f"{path}:{first}", {**payload, **groups})
            first, rows = group + 1, 0


class ParquetReader(SourceReader):
    """Reads the rows of a split.

    Arguments:
        columns: the names of the columns to read; None for all columns.
        schema: the schema to which the rows are cast, or None.
        open_file: a function that opens the file of a split, given the split's payload. It raises
            an error if the file has changed.
        blocking: whether reading a file may block for long.
    """

    def __init__(
        self,
        columns: list[str] | None,
        schema: pa.Schema | None,
        open_file: Callable[[dict[str, Any]], pq.ParquetFile],
        *,
        blocking: bool,
    ) -> None:
        self.blocking = blocking
        self._columns, self._schema, self._open_file = columns, schema, open_file
        self._path = ""
        self._file: pq.ParquetFile | None = None
        self._cursor: ArrowCursor | None = None

    def open(self, split: Split, position: Any) -> None:
        """Open the file of a split, and find the row group of a position."""
        self.close()
        payload = split.payload
        self._path = path = payload["path"]
        self._file = file = self._open_file(payload)
        check_columns(path, file, self._columns)
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
        """Return the next rows of the split."""
        assert self._cursor is not None, "read before open"
        try:
            return self._cursor.read(max_records)
        except (OSError, ValueError) as error:  # the errors of pyarrow are among them
            raise JobError(f"{self._path} cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
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


def open_parquet(path: object, source: Any, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file.

    Arguments:
        path: the path of the file, for messages.
        source: the path, or a file object of pyarrow.
        options: options of `pyarrow.parquet.ParquetFile`.

    Raises:
        JobError: if there is no Parquet file that can be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)
    except FileNotFoundError as error:
        raise unreadable(path, error) from error
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{path} is no Parquet file that can be read: {error}") from error


def check_columns(path: object, file: pq.ParquetFile, columns: Sequence[str] | None) -> None:
    """Check that a file has columns, each once.

    Raises:
        JobError: if it lacks a column, or has a column twice.
    """
    names = file.schema_arrow.names
    for name in columns or ():
        if name not in names:
            raise JobError(f"{path} has no column {name!r}; its columns are {', '.join(names)}")
    for name in names if columns is None else columns:
        if names.count(name) > 1:
            raise JobError(f"{path} has several columns {name!r}: list others in columns=[...]")


def check_column_names(schema: pa.Schema | None, columns: Sequence[str] | None) -> list[str] | None:
    """Return the names of the columns to read; None for all columns.

    Raises:
        GraphError: if `columns` is not a list of names.
    """
    if columns is None and schema is not None:
        return list(schema.names)
    if isinstance(columns, str) or (columns is not None and not list(columns)):
        raise GraphError(f"columns is a list of names, not {columns!r}")
    return None if columns is None else list(columns)
