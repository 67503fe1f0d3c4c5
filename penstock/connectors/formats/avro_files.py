"""Files of Avro, which begin with their schema."""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.connectors.bad_messages import BadMessages, Misfit
from penstock.connectors.compressed_files import ReadableFile, open_file
from penstock.connectors.file_formats import BinaryFormat, Cursor
from penstock.connectors.formats.avro_compatibility import why_unreadable
from penstock.connectors.formats.avro_format import (
    MISFITS,
    AvroSchemaLike,
    avro_encoder,
    avro_schema,
    fastavro,
    plain_record,
    record_converter,
)
from penstock.connectors.formats.record_types import RecordType
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import Read

_CODECS = ("null", "deflate", "bzip2", "xz", "snappy", "zstandard", "lz4")
#: The number of blocks that one call of `read` skips at most, so that it does not delay barriers.
_SKIP = 64


@dataclass(frozen=True)
class AvroFiles(BinaryFormat[Any]):
    """Stores records in files of Avro, in blocks that may be compressed.

    The position of a source is a number of records. A resumed job skips whole blocks first, without
    decoding them. A block that is damaged fails the job. `on_error` is for records that are not of
    the type.

    It needs `pip install 'penstock[avro]'`.

    Arguments:
        schema: the schema of written files: its JSON as text or value, or the path of a file with
            it. A source does not need it, because files have their schema.
        reader_schema: the schema of the records of a source; None for that of each file.
        type: the type of the records of a source, such as a dataclass; None for dicts.
        codec: the compression of the blocks of written files: "null" for none, "deflate", "bzip2"
            and "xz"; "snappy", "zstandard" and "lz4" need the packages that fastavro names.
        on_error: how a source handles a record that is not of the type; see `FileFormat`.

    Raises:
        GraphError: if a schema or the codec is not valid, or fastavro is missing.

    Examples:
        >>> schema = {
        ...     "type": "record",
        ...     "name": "User",
        ...     "fields": [{"name": "name", "type": "string"}],
        ... }
        >>> users = env.from_collection([{"name": "ann"}])
        >>> _ = users.sink_to(FileSink("users", AvroFiles(schema)))
        >>> _ = env.execute("users")
        >>> list(env.from_source(FileSource("users", AvroFiles())).execute_and_collect())
        [{'name': 'ann'}]
    """

    extension = ".avro"

    schema: AvroSchemaLike | None = field(default=None, kw_only=False)
    reader_schema: AvroSchemaLike | None = None
    type: Any = None
    codec: str = "deflate"

    def __post_init__(self) -> None:
        super().__post_init__()
        fastavro("AvroFiles")
        for name in ("schema", "reader_schema"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, avro_schema(given))
        if self.codec not in _CODECS:
            raise GraphError(f"codec of AvroFiles is one of {_CODECS}, not {self.codec!r}")
        record_converter(self.type)  # to find a missing package now
        object.__setattr__(self, "_record_type", RecordType(self.type))

    def open_cursor(self, file: ReadableFile, position: Any, bad: BadMessages) -> Cursor:
        """Return a cursor that reads a file from a position."""
        return _AvroCursor(self, file, position, bad)

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return a function that encodes the records of one file.

        Raises:
            GraphError: if the format has no schema.
        """
        if self.schema is None:
            raise GraphError("a sink needs the schema of its files: write AvroFiles(schema)")
        return _AvroEncoder(self.schema, self.codec)


class _AvroEncoder:
    """Encodes the records of one file, block by block."""

    def __init__(self, schema: Any, codec: str) -> None:
        self._data = io.BytesIO()
        try:
            self._writer = fastavro().write.Writer(
                self._data, schema, codec, options={"strict_allow_default": True}
            )
        except (ImportError, ValueError) as error:
            raise GraphError(f"AvroFiles cannot compress with {codec!r}: {error}") from None

    def __call__(self, batch: list[Any]) -> bytes:
        write = self._writer.write
        for record in batch:
            try:
                write(plain_record(record))
            except Exception as error:
                raise JobError(
                    f"AvroFiles cannot write a record: {error}", record=repr(record)[:200]
                ) from error
        return self._taken()

    def finish(self) -> bytes:
        """Return the bytes of the last block."""
        self._writer.flush()
        return self._taken()

    def _taken(self) -> bytes:
        """Return and remove the bytes of the blocks that are complete."""
        data = self._data.getvalue()
        self._data.seek(0)
        self._data.truncate()
        return data


class _AvroCursor:
    """Reads the records of one file, and skips those before a position."""

    def __init__(
        self, format: AvroFiles, file: ReadableFile, position: int | None, bad: BadMessages
    ) -> None:
        self._path = file
        self._bad = bad
        self._position = position or 0
        #: The number of records before the current block.
        self._before = 0
        self._records: Iterator[Any] = iter(())
        self._convert = record_converter(format.type)
        self._file = open_file(file)
        try:
            self._blocks: Any = fastavro().block_reader(self._file, format.reader_schema)
            self._schema = self._blocks.writer_schema
        except _errors() as error:
            self._file.close()
            raise JobError(f"{file} is not a file of Avro: {error}") from error
        if format.reader_schema is not None:
            reason = why_unreadable(self._schema, format.reader_schema)
            if reason is not None:
                self._file.close()
                raise JobError(f"{file} cannot be read with reader_schema=: {reason}")

    def read(self, max_records: int) -> Read:
        try:
            records = list(islice(self._records, max_records))
            for _ in range(_SKIP):
                if records:
                    break
                block = next(self._blocks, None)
                if block is None:
                    return self._end()
                count = block.num_records
                if self._before + count > self._position:
                    self._records = iter(block)
                    skipped = self._position - self._before
                    next(islice(self._records, skipped, skipped), None)
                    records = list(islice(self._records, max_records))
                self._before += count
        except _errors() as error:
            raise JobError(
                f"{self._path} is damaged behind record {self._position}: {error!r}"
            ) from error
        first, self._position = self._position, self._position + len(records)
        if self._convert is not None:
            records = self._converted(records, first)
        return Read(records, self._position, False, 0.0, self._bad.take_side_output())

    def _end(self) -> Read:
        if self._before < self._position:
            raise JobError(
                f"{self._path} has {self._before} records, and {self._position} were read before "
                f"the snapshot: it was changed; restore it, or start the job without --resume"
            )
        return Read([], self._position, finished=True)

    def _converted(self, records: list[Any], first: int) -> list[Any]:
        """Return records of the type, and handle those that are not."""
        convert = self._convert
        assert convert is not None
        try:
            return convert(records)
        except ValueError:
            found = []
            for number, record in enumerate(records, first + 1):
                try:
                    found += convert([record])
                except ValueError as error:
                    self._bad.add(
                        Misfit(
                            f"{self._path}, record {number}",
                            f"a record is not of the type: {error}",
                            avro_encoder(self._schema)(record),
                            repr(record)[:200],
                        )
                    )
            return found

    def close(self) -> None:
        self._file.close()


def _errors() -> tuple[type[Exception], ...]:
    """Return what fastavro raises for a file that is damaged."""
    resolution = fastavro().read.SchemaResolutionError
    return (*MISFITS, resolution, ImportError, zlib.error, lzma.LZMAError)
