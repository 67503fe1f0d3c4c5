"""Formats: schemas that decode messages to records, and encode records as messages.

Sources and sinks of messages and of files take them alike. Each public name is imported at its
first use, and the library of a format when the program makes the format. `schemas.py` defines the
interfaces, and `messages.py` has the classes that sources and sinks use. The user guide is
`docs/guides/formats.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.formats.avro_files import AvroFiles
    from penstock.connectors.formats.avro_format import (
        Avro,
        AvroRowDeserializationSchema,
        AvroRowSerializationSchema,
    )
    from penstock.connectors.formats.csv_format import (
        CsvRowDeserializationSchema,
        CsvRowSerializationSchema,
    )
    from penstock.connectors.formats.debezium import Debezium, DebeziumChange
    from penstock.connectors.formats.json_format import (
        Json,
        JsonRowDeserializationSchema,
        JsonRowSerializationSchema,
    )
    from penstock.connectors.formats.lines import MessageLines
    from penstock.connectors.formats.messages import Decoded, MessageDecoder, MessageEncoder
    from penstock.connectors.formats.protobuf_format import Protobuf
    from penstock.connectors.formats.registered import Registered
    from penstock.connectors.formats.schema_registry import SchemaRegistry
    from penstock.connectors.formats.schemas import (
        DeserializationSchema,
        MessageFormat,
        SchemaContext,
        SerializationSchema,
        check_deserialization_schema,
        check_serialization_schema,
    )
    from penstock.connectors.formats.text import ByteArraySchema, SimpleStringSchema

_WHERE = {
    "avro_files": "AvroFiles",
    "avro_format": "Avro AvroRowDeserializationSchema AvroRowSerializationSchema",
    "csv_format": "CsvRowDeserializationSchema CsvRowSerializationSchema",
    "debezium": "Debezium DebeziumChange",
    "json_format": "Json JsonRowDeserializationSchema JsonRowSerializationSchema",
    "lines": "MessageLines",
    "messages": "Decoded MessageDecoder MessageEncoder",
    "protobuf_format": "Protobuf",
    "registered": "Registered",
    "schema_registry": "SchemaRegistry",
    "schemas": (
        "DeserializationSchema MessageFormat SchemaContext SerializationSchema "
        "check_deserialization_schema check_serialization_schema"
    ),
    "text": "ByteArraySchema SimpleStringSchema",
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "Avro",
    "AvroFiles",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "ByteArraySchema",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "Debezium",
    "DebeziumChange",
    "Decoded",
    "DeserializationSchema",
    "Json",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
    "MessageDecoder",
    "MessageEncoder",
    "MessageFormat",
    "MessageLines",
    "Protobuf",
    "Registered",
    "SchemaContext",
    "SchemaRegistry",
    "SerializationSchema",
    "SimpleStringSchema",
    "check_deserialization_schema",
    "check_serialization_schema",
]

__getattr__ = lazy_names(__name__, _MODULE_OF)
