"""Write one staged data file in Parquet or ORC with Arrow, and compute its checksum.

Rows are collected in memory and written one row group at a time. The checksum is computed while
the bytes are written, so the file is not read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.lake.record_encoding import CATALYST_TYPE
from penstock.connectors.staging_writer import naming, new_digest
from penstock.snapshot.storage.filesystem.durable_files import sync_path

#: The file name extension of data files, keyed by format.
EXTENSIONS = {"parquet": ".snappy.parquet", "orc": ".snappy.orc"}
#: The size of a row group in memory, in bytes. It is smaller than Spark's 128 MB, because the task
#: does nothing else while it writes a row group, which takes about 20 ms.
_ROW_GROUP_BYTES = 4 << 20


class DataFile:
    """Writes one staged data file. The file is created when the first row group is full.

    Arguments:
        path: the staged path of the file. The file must not exist.
        format: "parquet" or "orc".
        schema: the columns of the file.
    """

    def __init__(self, path: Path, format: str, schema: pa.Schema) -> None:
        self.path = path
        self._format = format
        self._schema = _stored(format, schema)
        self._gathered: list[pa.Table] = []
        self.gathered_bytes = 0
        self._file: _HashedFile | None = None
        self._writer: Any = None

    @property
    def is_open(self) -> bool:
        """Whether the file has been created."""
        return self._file is not None

    @property
    def size(self) -> int:
        """The number of bytes that were written to the file."""
        return 0 if self._file is None else self._file.size

    def write(self, rows: pa.Table) -> None:
        """Add rows, and write a row group if enough rows have been collected.

        Raises:
            JobError: if the file cannot be written, for example because the disk is full.
        """
        self._gathered.append(rows)
        self.gathered_bytes += rows.nbytes
        if self.gathered_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows as a row group."""
        with naming(self.path):
            if self._file is None:
                self._file = _HashedFile(self.path)
                self._writer = _open_writer(self._file, self._format, self._schema)
            gathered, self._gathered, self.gathered_bytes = self._gathered, [], 0
            if any(map(len, gathered)):
                self._writer.write(pa.concat_tables(gathered).cast(self._schema).combine_chunks())

    def finish(self) -> None:
        """Write the collected rows and close the file, without syncing it to disk."""
        if self._writer is None or self._gathered:
            self.flush()
        assert self._file is not None
        with naming(self.path):
            self._writer.close()
            self._file.close()

    def seal(self) -> dict[str, Any]:
        """Complete the file and sync it to disk; return its name, size and checksum."""
        if self._file is None or not self._file.closed:
            self.finish()
        assert self._file is not None
        with naming(self.path):
            self._file.sync()
            sync_path(self.path.parent)
        return {
            "staged": self.path.name,
            "size": self._file.size,
            "checksum": self._file.digest.hexdigest(),
        }

    def discard(self) -> None:
        """Drop the collected rows, and remove the file if it was created."""
        self._gathered = []
        if self._file is not None:
            # Close the writer here. Otherwise the garbage collector would close it later.
            self._writer.close()
            self._file.close()
            self.path.unlink(missing_ok=True)


def _stored(format: str, schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types that Spark uses for these columns in files of a format."""
    return pa.schema([_stored_field(format, field) for field in schema])


def _stored_field(format: str, field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and format == "orc":
        return field.with_type(pa.int64()).with_metadata({CATALYST_TYPE: "timestamp_ntz"})
    if pa.types.is_duration(kind):
        return field.with_type(pa.int64())  # In ORC, the field's metadata names the Spark type.
    if "duration" not in str(kind):
        return field
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_stored_field(format, kind.value_field)))
    if pa.types.is_map(kind):
        key, item = (_stored_field(format, f) for f in (kind.key_field, kind.item_field))
        return field.with_type(pa.map_(key, item))
    fields = [_stored_field(format, kind.field(i)) for i in range(kind.num_fields)]
    return field.with_type(pa.struct(fields))


def _open_writer(file: _HashedFile, format: str, schema: pa.Schema) -> Any:
    stream = pa.PythonFile(file, mode="w")
    if format == "parquet":
        # Only Iceberg's columns have ids. Iceberg stores decimals of up to 18 digits as integers.
        with_ids = any(b"PARQUET:field_id" in (f.metadata or {}) for f in schema)
        options = {"store_decimal_as_integer": True} if with_ids else {}
        return pq.ParquetWriter(
            stream, schema, compression="snappy", use_dictionary=_with_dictionary(schema), **options
        )
    from pyarrow import orc

    return orc.ORCWriter(stream, compression="snappy")


def _with_dictionary(schema: pa.Schema) -> bool | list[str]:
    """Return the columns to write with dictionary encoding; True for all columns.

    Columns that seldom repeat a value are left out. Arrow would begin a dictionary for them and
    then abandon it, which takes half of the time for writing such a file.
    """
    if any(pa.types.is_nested(f.type) for f in schema):
        return True  # Arrow cannot exclude columns by name if there are nested columns.
    return [
        f.name
        for f in schema
        if not (
            pa.types.is_int64(f.type)
            or pa.types.is_floating(f.type)
            or pa.types.is_timestamp(f.type)
        )
    ]


class _HashedFile:
    """A file object for pyarrow's writers that computes the checksum of the written data."""

    def __init__(self, path: Path) -> None:
        self.digest = new_digest()
        self.size = 0
        self._file = path.open("xb", buffering=1 << 20)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        """Write data, and add it to the checksum."""
        view = memoryview(data)
        self.digest.update(view)
        self.size += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Do nothing, because only `sync` makes the data durable."""

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self.size

    def close(self) -> None:
        """Close the file without syncing it to disk."""
        self._file.close()

    def sync(self) -> None:
        """Close the file and sync it to disk."""
        self._file.close()
        sync_path(Path(self._file.name))
