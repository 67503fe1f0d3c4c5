"""Avro messages without a header, encoded by fastavro, and PyFlink's row schemas.

Each message is one value in Avro's binary encoding. It does not contain its schema, so the program
gives it, or a schema registry does (`registered.py`).
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic
from uuid import UUID

from penstock.connectors.formats.avro_compatibility import why_unreadable
from penstock.connectors.formats.libraries import library
from penstock.connectors.formats.record_types import RecordType
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    MessageFormat,
    SchemaContext,
    SerializationSchema,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import T
from penstock.dataflow.types import Row, RowKind

#: A schema as a program gives it: its JSON as text or value, or the path of a file with it.
AvroSchemaLike = str | Path | Mapping[str, Any] | list[Any]

#: The errors that fastavro raises for bytes that do not fit the schema.
MISFITS = (
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    StopIteration,
    AttributeError,
    struct.error,
)
#: The classes whose values fastavro writes itself, as logical types.
_LOGICAL = (bytes, bytearray, date, datetime, time, Decimal, UUID)


def fastavro(what: str = "Avro") -> Any:
    """Return the package fastavro.

    Raises:
        GraphError: if it is not installed.
    """
    return library("fastavro", "avro", what)


def avro_schema(schema: AvroSchemaLike) -> Any:
    """Return the JSON value of a schema.

    Raises:
        GraphError: if it is not a valid Avro schema.
    """
    package = fastavro()
    found: Any = schema
    try:
        if isinstance(schema, Path) or (isinstance(schema, str) and schema.endswith(".avsc")):
            found = json.loads(Path(schema).read_text())
        elif isinstance(schema, str):
            text = schema.strip()
            found = json.loads(text) if text[:1] in ("{", "[", '"') else text
        package.parse_schema(found)
    except OSError as error:
        raise GraphError(f"the Avro schema {schema} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, package.schema.UnknownType) as error:
        raise GraphError(f"not a valid Avro schema: {error!r} in {schema!r}") from None
    except package.schema.SchemaParseException as error:
        raise GraphError(f"not a valid Avro schema: {error} in {schema!r}") from None
    return found


def avro_decoder(
    writer: Any, reader: Any = None, type: Any = None
) -> Callable[[Sequence[bytes]], list[Any]]:
    """Return a function that decodes messages.

    Arguments:
        writer: the schema with which the messages were written.
        reader: the schema of the records; None for the writer's schema.
        type: the type of the records; None for dicts.

    The function raises a `ValueError` if a message does not fit.
    """
    package = fastavro()
    read = package.schemaless_reader
    parsed = package.parse_schema(writer)
    resolved = None if reader is None or reader == writer else package.parse_schema(reader)
    convert = record_converter(type)

    def decode(messages: Sequence[bytes]) -> list[Any]:
        records = []
        try:
            for message in messages:
                data = io.BytesIO(message)
                records.append(read(data, parsed, resolved))
                if data.tell() != len(message):
                    raise ValueError(f"{len(message) - data.tell()} bytes follow the value")
        except (*MISFITS, package.read.SchemaResolutionError) as error:
            raise ValueError(str(error) or "it is too short") from error
        return records if convert is None else convert(records)

    return decode


def avro_encoder(schema: Any) -> Callable[[Any], bytes]:
    """Return a function that encodes one record.

    The function raises an exception if the record is not of the schema, or has more fields.
    """
    package = fastavro()
    write, parsed = package.schemaless_writer, package.parse_schema(schema)

    def encode(record: Any) -> bytes:
        data = io.BytesIO()
        write(data, parsed, plain_record(record), strict_allow_default=True)
        return data.getvalue()

    return encode


def plain_record(record: Any) -> Any:
    """Return a record of a class as a dict, with all values that fastavro can write."""
    if record.__class__ is dict:
        return record
    if isinstance(record, Row):
        return record.as_dict(recursive=True)
    if isinstance(record, tuple) and hasattr(record, "_asdict"):
        return {name: plain_record(value) for name, value in record._asdict().items()}
    if hasattr(record, "__dataclass_fields__") or hasattr(record, "__struct_fields__"):
        msgspec = library("msgspec", "json", "Avro of a dataclass")
        return msgspec.to_builtins(record, builtin_types=_LOGICAL)
    return record


def record_converter(type: Any) -> Callable[[list[Any]], list[Any]] | None:
    """Return a function that converts dicts to records of a type."""
    if type is None:
        return None
    msgspec = library("msgspec", "json", "Avro with a type")

    def convert(records: list[Any]) -> list[Any]:
        try:
            return [msgspec.convert(one, type, builtin_types=_LOGICAL) for one in records]
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    return convert


class Avro(MessageFormat[T], Generic[T]):
    r"""Each message is a value in Avro's binary encoding, without its schema.

    Records are dicts, or have a type, such as a dataclass; this needs `penstock[json]`, too.
    Logical types become values of `datetime`, `decimal` and `uuid`. A sink writes dicts,
    dataclasses, named tuples and `Row`s. A field that the schema does not have is an error.

    It needs `pip install 'penstock[avro]'`.

    Arguments:
        schema: the schema with which messages are written: its JSON as text or value, or the path
            of an `.avsc` file. With `Registered`, it may be None: a source then reads with the
            schema of each message.
        reader_schema: the schema of the records of a source, if it differs. Fields that only it has
            get their defaults, and fields that only `schema` has are left out.
        type: the type of the records; None for dicts.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Raises:
        GraphError: if a schema is not valid, if data of `schema` cannot be read with
            `reader_schema`, or if a package is missing.

    Examples:
        >>> schema = {
        ...     "type": "record",
        ...     "name": "User",
        ...     "fields": [{"name": "name", "type": "string"}],
        ... }
        >>> Avro(schema).serialize([{"name": "ann"}])
        [b'\x06ann']
        >>> Avro(schema).deserialize([b"\x06ann"])
        [{'name': 'ann'}]
    """

    def __init__(
        self,
        schema: AvroSchemaLike | None = None,
        *,
        reader_schema: AvroSchemaLike | None = None,
        type: type[T] | None = None,
        on_error: str = "fail",
    ) -> None:
        super().__init__(on_error=on_error)
        fastavro()
        self.schema = None if schema is None else avro_schema(schema)
        self.reader_schema = None if reader_schema is None else avro_schema(reader_schema)
        self._type = RecordType(type)
        record_converter(type)  # to find a missing package now
        if self.schema is not None and self.reader_schema is not None:
            reason = why_unreadable(self.schema, self.reader_schema)
            if reason is not None:
                raise GraphError(f"data of schema= cannot be read with reader_schema=: {reason}")
        self._decode: Callable[[Sequence[bytes]], list[Any]] | None = None
        self._encode: Callable[[Any], bytes] | None = None

    @property
    def type(self) -> Any:
        """The type of the records; None for dicts."""
        return self._type.type

    def open(self, context: SchemaContext) -> None:
        """Parse the schemas.

        Raises:
            GraphError: if there is no schema.
        """
        del context
        if self.schema is None:
            raise GraphError(
                "Avro() without a schema reads only what a schema registry knows: give it a "
                "schema, or write Registered(Avro(), registry)"
            )
        self._decode = avro_decoder(self.schema, self.reader_schema, self.type)
        self._encode = avro_encoder(self.schema)

    def deserialize(self, messages: Sequence[bytes]) -> list[T]:
        """Return the record of each message.

        Raises:
            ValueError: if a message does not fit.
        """
        if self._decode is None:
            self.open(SchemaContext())
        assert self._decode is not None
        return self._decode(messages)

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return each record in Avro's binary encoding."""
        if self._encode is None:
            self.open(SchemaContext())
        assert self._encode is not None
        return list(map(self._encode, records))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_decode": None, "_encode": None}


class AvroRowDeserializationSchema(DeserializationSchema[Row]):
    """Each message is an Avro record, which becomes a `Row`. (PyFlink: this name.)

    Arguments:
        record_class: not supported; it names a class of the JVM.
        avro_schema_string: the JSON text of the schema of a record.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Examples:
        >>> schema = '''{"type": "record", "name": "User", "fields": [
        ...     {"name": "name", "type": "string"}]}'''
        >>> AvroRowDeserializationSchema(avro_schema_string=schema).deserialize([b"\\x06ann"])
        [Row(name='ann')]
    """

    def __init__(
        self,
        record_class: str | None = None,
        avro_schema_string: str | None = None,
        *,
        on_error: str = "fail",
    ) -> None:
        text = _schema_text("AvroRowDeserializationSchema", record_class, avro_schema_string)
        self._values: Avro[dict[str, Any]] = Avro(text, on_error=on_error)
        self.on_error = on_error

    def deserialize(self, messages: Sequence[bytes]) -> list[Row]:
        """Return the row of each message.

        Raises:
            ValueError: if a message does not fit.
        """
        return list(map(_row, self._values.deserialize(messages)))


class AvroRowSerializationSchema(SerializationSchema[Row]):
    """Writes each `Row` as an Avro record. (PyFlink: this name.)

    A row without names has its values in the order of the schema's fields.

    Arguments:
        record_class: not supported; it names a class of the JVM.
        avro_schema_string: the JSON text of the schema of a record.

    Examples:
        >>> schema = '''{"type": "record", "name": "User", "fields": [
        ...     {"name": "name", "type": "string"}]}'''
        >>> AvroRowSerializationSchema(avro_schema_string=schema).serialize([Row("ann")])
        [b'\\x06ann']
    """

    def __init__(
        self, record_class: str | None = None, avro_schema_string: str | None = None
    ) -> None:
        text = _schema_text("AvroRowSerializationSchema", record_class, avro_schema_string)
        self._values: Avro[Any] = Avro(text)
        self._names = [field["name"] for field in avro_schema(text)["fields"]]

    def serialize(self, records: Sequence[Row]) -> list[bytes]:
        """Return each row in Avro's binary encoding.

        Raises:
            ValueError: if a row has more or fewer fields.
        """
        return self._values.serialize(list(map(self._named, records)))

    def _named(self, row: Any) -> Any:
        if isinstance(row, Row) and row.get_field_names() is not None:
            return row
        return dict(zip(self._names, row, strict=True))


def _schema_text(what: str, record_class: object, text: str | None) -> str:
    if record_class is not None:
        raise GraphError(f"{what} has no record_class, which is a class of the JVM")
    if text is None:
        raise GraphError(f"{what} needs avro_schema_string")
    schema = avro_schema(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise GraphError(f"{what} needs the schema of a record, not {text}")
    return text


def _row(value: Any) -> Any:
    """Return dicts as rows, also inside of lists."""
    if isinstance(value, dict):
        return Row.of_parts(RowKind.INSERT, tuple(value), [_row(item) for item in value.values()])
    return [_row(item) for item in value] if isinstance(value, list) else value
