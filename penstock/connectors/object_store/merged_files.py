"""Merge small files of one format to one: lines one behind the other, CSV under one header."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.connectors.file_formats import CsvRows
from penstock.connectors.object_store.parquet_rows import ParquetRows


@dataclass(frozen=True)
class Merger:
    """Describes how files of a format are merged.

    Arguments:
        header: whether each file begins with a line that only the first keeps.
        compression: the compression of Parquet files; None for files of bytes.
    """

    header: bool = False
    compression: str | None = None

    @classmethod
    def of(cls, format: Any) -> Merger:
        """Return the merger for a format of sinks."""
        if isinstance(format, ParquetRows):
            return cls(compression=format.compression)
        return cls(header=isinstance(format, CsvRows) and format.header)


def merge_files(merger: Merger, paths: Sequence[Path]) -> bytes:
    """Return the content of files as that of one file, the same each time."""
    if merger.compression is not None:
        return _merge_parquet(merger.compression, paths)
    contents = [path.read_bytes() for path in paths]
    if merger.header:
        # Names of columns have no line ends, or the files would not be merged.
        first, *rest = contents
        header = first[: first.index(b"\n") + 1]
        contents = [first, *(content.removeprefix(header) for content in rest)]
    return b"".join(contents)


def _merge_parquet(compression: str, paths: Sequence[Path]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.ParquetFile(path).read() for path in paths]
    table = pa.concat_tables(tables, promote_options="permissive")
    out = io.BytesIO()
    pq.write_table(table, out, compression=compression)
    return out.getvalue()
