"""Stage one data file: Parquet or ORC, written through Arrow, with a checksum.

Rows are gathered and written one row group at a time. The checksum is computed from the bytes as
they are written, so nothing is read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.file_sink import naming, new_digest
from penstock.connectors.spark.record_encoding import CATALYST_TYPE
from penstock.snapshot.storage.filesystem.durable_files import sync_path

__all__ = ["EXTENSIONS", "DataFile"]

#: The ending of data files' names, by format.
EXTENSIONS = {"parquet": ".snappy.parquet", "orc": ".snappy.orc"}
#: Size of a row group's columns in memory. Writing it takes about 20 ms, in which the task does
#: nothing else, so it is smaller than Spark's 128 MB.
_ROW_GROUP_BYTES = 4 << 20


class DataFile:
    """A file that is being written. It is created when its first row group is full.

    Arguments:
        path: its staged name, which must not exist.
        format: "parquet" or "orc".
        schema: the columns.
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
        """Whether the file was created."""
        return self._file is not None

    def write(self, rows: pa.Table) -> None:
        """Add rows.

        Raises:
            JobError: if the file cannot be written, for example because the disk is full.
        """
        self._gathered.append(rows)
        self.gathered_bytes += rows.nbytes
        if self.gathered_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows as a row group."""
        with naming(self.path):
            if self._file is None:
                self._file = _HashedFile(self.path)
                self._writer = _open_writer(self._file, self._format, self._schema)
            gathered, self._gathered, self.gathered_bytes = self._gathered, [], 0
            if any(map(len, gathered)):
                self._writer.write(pa.concat_tables(gathered).cast(self._schema).combine_chunks())

    def finish(self) -> None:
        """Write all rows and close the file; it is not durable yet."""
        if self._writer is None or self._gathered:
            self.flush()
        assert self._file is not None
        with naming(self.path):
            self._writer.close()
            self._file.close()

    def seal(self) -> dict[str, Any]:
        """Make the file durable; return its name, size and checksum."""
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
        """Remove the file."""
        self._gathered = []
        if self._file is not None:
            self._writer.close()  # otherwise it closes itself when it is collected
            self._file.close()
            self.path.unlink(missing_ok=True)


def _stored(format: str, schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types as which Spark stores these columns in a format."""
    return pa.schema([_stored_field(format, field) for field in schema])


def _stored_field(format: str, field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and format == "orc":
        return field.with_type(pa.int64()).with_metadata({CATALYST_TYPE: "timestamp_ntz"})
    if pa.types.is_duration(kind):
        return field.with_type(pa.int64())  # in ORC, metadata carries the type
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
        # Columns with ids are Iceberg's, which stores decimals of up to 18 digits as integers.
        with_ids = any(b"PARQUET:field_id" in (f.metadata or {}) for f in schema)
        options = {"store_decimal_as_integer": True} if with_ids else {}
        return pq.ParquetWriter(
            stream, schema, compression="snappy", use_dictionary=_with_dictionary(schema), **options
        )
    from pyarrow import orc

    return orc.ORCWriter(stream, compression="snappy")


def _with_dictionary(schema: pa.Schema) -> bool | list[str]:
    """Return the columns to store with a dictionary, in the form that Arrow takes.

    Columns that seldom repeat a value are left out: a dictionary that is begun and then abandoned
    takes half of the time for such a file.
    """
    if any(pa.types.is_nested(f.type) for f in schema):
        return True  # nested columns cannot be left out by their names
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
    """A file for pyarrow to write to, which computes the checksum meanwhile."""

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
        """Do nothing: only `sync` makes data durable."""

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def close(self) -> None:
        """Close the file; it is not durable yet."""
        self._file.close()

    def sync(self) -> None:
        """Make the file durable."""
        self._file.close()
        sync_path(Path(self._file.name))
