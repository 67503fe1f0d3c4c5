"""Write Parquet files exactly once, without Spark.

The files are staged and published in the same way as by `FileSink`. A file contains the records
that a subtask received between two snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.connectors.file_sink import StagedFileSink
from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.columns.arrow import check_schema, require_pyarrow
from penstock.dataflow.columns.arrow_records import arrow_of, fit_schema
from penstock.dataflow.errors import GraphError, JobError

if TYPE_CHECKING:
    import pyarrow as pa

_COMPRESSIONS = ("snappy", "zstd", "gzip", "brotli", "lz4", "none")


class ParquetSink(StagedFileSink):
    """Writes one Parquet file for each subtask and snapshot into a folder, exactly once.

    Records are Arrow batches, or rows: dicts, Rows with names, named tuples or dataclasses. Files
    are named and published in the same way as by `FileSink`. `ParquetSource` reads the folder.

    Arguments:
        folder: the folder of the published files. It is created with the first record if it does
            not exist.
        schema: a `pyarrow.Schema`, or a dict of the name and the type of each column, such as
            `{"user": "string", "amount": "int64"}`. Rows may then also be tuples. Without it, each
            file gets the columns of its first row group. The type of a column without values may
            then differ between files.
        compression: `snappy`, `zstd`, `gzip`, `brotli`, `lz4` or `none`.
        row_group_rows: the number of rows at which a row group is written. Rows of the current row
            group are held in memory.

    Raises:
        GraphError: if pyarrow is not installed, or an argument is wrong.

    Examples:
        >>> import pyarrow
        >>> table = pyarrow.table({"user": ["ann", "bob"], "amount": [5, 7]})
        >>> _ = env.from_source(ArrowSource(table)).sink_to(ParquetSink("sales"))
        >>> _ = env.execute("sales")
        >>> results = env.from_source(ParquetSource("sales")).map(lambda row: row["user"])
        >>> list(results.execute_and_collect())
        ['ann', 'bob']
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        schema: Any = None,
        *,
        compression: str = "snappy",
        row_group_rows: int = 1 << 17,
    ) -> None:
        require_pyarrow("ParquetSink")
        check_compression("a ParquetSink", compression)
        whole_number("row_group_rows", row_group_rows, 1)
        given = check_schema("ParquetSink", schema)
        super().__init__(folder, ParquetFormat(given, compression, row_group_rows))


def check_compression(name: str, compression: str) -> str:
    """Return the name of a compression of Parquet, if it is one.

    Raises:
        GraphError: if it is unknown.
    """
    if compression not in _COMPRESSIONS:
        raise GraphError(
            f"the compression of {name} is one of {', '.join(_COMPRESSIONS)}, not {compression!r}"
        )
    return compression


class ParquetFormat:
    """The format of the files of a Parquet sink."""

    extension = ".parquet"

    def __init__(self, schema: pa.Schema | None, compression: str, row_group_rows: int) -> None:
        self.schema, self.compression = schema, compression
        self.row_group_rows = row_group_rows

    def create_encoder(self) -> _ParquetEncoder:
        """Return the encoder of one file."""
        return _ParquetEncoder(self)


class _ParquetEncoder:
    """Encodes the row groups of one file.

    Arguments:
        format: the schema of the file, and its compression.
    """

    def __init__(self, format: ParquetFormat) -> None:
        self._format = format
        self._schema = format.schema
        self._out = _Taken()
        self._writer: Any = None
        self._rows: list[Any] = []
        self._batches: list[pa.RecordBatch] = []
        self._waiting = 0

    def __call__(self, batch: list[Any]) -> bytes:
        """Add rows, and return the bytes of the row groups that are full."""
        self._rows += batch
        self._waiting += len(batch)
        if self._schema is not None:
            self._seal_rows()
        return self._write_full()

    def encode_columns(self, batch: pa.RecordBatch) -> bytes:
        """Add an Arrow batch, and return the bytes of the row groups that are full."""
        self._seal_rows()
        if self._schema is not None:
            with self._hint():
                batch = fit_schema(batch, self._schema)
        self._batches.append(batch)
        self._waiting += batch.num_rows
        return self._write_full()

    def finish(self) -> bytes:
        """Return the bytes of the last row group and of the footer."""
        self._write()
        if self._writer is not None:
            self._writer.close()
        return self._out.take()

    def _write_full(self) -> bytes:
        if self._waiting >= self._format.row_group_rows:
            self._write()
        return self._out.take()

    def _seal_rows(self) -> None:
        """Convert the waiting rows to an Arrow batch."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        with self._hint():
            self._batches.append(arrow_of(rows, self._schema))

    @contextmanager
    def _hint(self) -> Iterator[None]:
        """Say in errors how the file has got its schema."""
        try:
            yield
        except JobError as error:
            if self._schema is not None and self._format.schema is None:
                raise JobError(
                    f"{error.message}. The first rows of the file decided its schema: give "
                    f"ParquetSink a schema",
                    record=error.record,
                ) from None
            raise

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._seal_rows()
        batches, self._batches, self._waiting = self._batches, [], 0
        if not batches:
            return
        try:
            tables = [pa.Table.from_batches([batch]) for batch in batches]
            table = pa.concat_tables(tables, promote_options="permissive")
            self._schema = self._schema or table.schema
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    pa.PythonFile(self._out, mode="w"),
                    self._schema,
                    compression=self._format.compression,
                )
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        except (pa.ArrowException, TypeError) as error:
            raise JobError(f"the rows cannot be written to a Parquet file: {error}") from None


class _Taken:
    """A file object that collects the written bytes until `take` returns them."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        """Collect the bytes, and return their number."""
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self._size

    def flush(self) -> None:
        """Do nothing, because nothing is buffered elsewhere."""

    def close(self) -> None:
        """Do nothing: the bytes are taken later."""

    def take(self) -> bytes:
        """Return the bytes that were written since the last call."""
        data = b"".join(self._parts)
        self._parts = []
        return data
