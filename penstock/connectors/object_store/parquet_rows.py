"""Parquet as a format of the sources and sinks of object stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.connectors.columns.parquet_files import check_column_names
from penstock.connectors.columns.parquet_sink import ParquetFormat, check_compression
from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.columns.arrow import check_schema, require_pyarrow


class ParquetRows:
    """Stores records as rows of Parquet files.

    A source emits Arrow batches, which functions over rows see as dicts. A sink takes Arrow
    batches, or rows: dicts, Rows with names, named tuples or dataclasses.

    Arguments:
        columns: the names of the columns that a source reads; None for all columns.
        schema: a `pyarrow.Schema`, or a dict of names and types. A source casts the rows of each
            file to it. A sink writes files with these columns. Without it, each file has the
            columns of its first row group.
        compression: how a sink compresses: `snappy`, `zstd`, `gzip`, `brotli`, `lz4` or `none`.
        row_group_rows: the number of rows at which a sink writes a row group.
        split_rows: a source divides an object with at least this number of rows at its row groups,
            so that several readers share it.

    Raises:
        GraphError: if pyarrow is not installed, or an argument is wrong.

    Examples:
        >>> ParquetRows(schema={"user": "string", "amount": "int64"}).extension
        '.parquet'
    """

    extension = ".parquet"

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        schema: Any = None,
        *,
        compression: str = "snappy",
        row_group_rows: int = 1 << 17,
        split_rows: int = 1 << 20,
    ) -> None:
        require_pyarrow("ParquetRows")
        self.schema = check_schema("ParquetRows", schema)
        self.columns = check_column_names(self.schema, columns)
        self.split_rows = whole_number("split_rows", split_rows, 1)
        self.compression = check_compression("ParquetRows", compression)
        groups = whole_number("row_group_rows", row_group_rows, 1)
        self._format = ParquetFormat(self.schema, compression, groups)

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return the encoder of one file."""
        return self._format.create_encoder()
