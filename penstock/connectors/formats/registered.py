"""Messages whose schema is in a schema registry, in the wire format of Confluent.

A message begins with a zero byte and the id of its schema, as four bytes. A Protobuf message goes
on with the place of its type in the file. `Registered` adds this to a format: `Avro`, `Json` or
`Protobuf`.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from penstock.connectors.formats.avro_compatibility import record_name, why_unreadable
from penstock.connectors.formats.avro_format import Avro, avro_decoder, avro_encoder, fastavro
from penstock.connectors.formats.json_format import Json, json_schema_text
from penstock.connectors.formats.libraries import library
from penstock.connectors.formats.protobuf_format import Protobuf
from penstock.connectors.formats.schema_registry import (
    Reference,
    RegisteredSchema,
    SchemaRegistry,
)
from penstock.connectors.formats.schemas import MessageFormat, SchemaContext
from penstock.dataflow.errors import GraphError

#: A zero byte, and the id.
_HEAD = struct.Struct(">bI")

Decode = Callable[[Sequence[bytes]], list[Any]]
#: A function that returns the name of a subject, given the topic, whether the schema is of keys,
#: and the name of the record.
SubjectName = Callable[[str, bool, str], str]


def topic_name(topic: str, is_key: bool, record: str) -> str:
    """Return `<topic>-value` or `<topic>-key`.

    Raises:
        GraphError: if the topic is not known.
    """
    del record
    if not topic:
        raise GraphError(
            "the subject of a schema is named by its topic, which is not known here: give "
            "Registered(...) the argument subject="
        )
    return f"{topic}-{'key' if is_key else 'value'}"


def record_subject(topic: str, is_key: bool, record: str) -> str:
    """Return the name of the record."""
    del topic, is_key
    return record


def topic_record_name(topic: str, is_key: bool, record: str) -> str:
    """Return `<topic>-<name of the record>`."""
    del is_key
    return f"{topic}-{record}"


_STRATEGIES: dict[str, SubjectName] = {
    "topic": topic_name,
    "record": record_subject,
    "topic-record": topic_record_name,
}


class Registered(MessageFormat[Any]):
    """Each message has the id of its schema, which is in a schema registry.

    A source reads each message with the schema with which it was written. If the format has a
    schema of its own, records have that one: fields that are new there get their defaults. A sink
    registers the schema of the format when it begins to write.

    A message does not fit if its id is unknown, or if its schema cannot be read with that of the
    format. The source handles such a message according to `on_error` of the format.

    Arguments:
        format: `Avro(...)`, `Json(...)` or `Protobuf(...)`.
        registry: the schema registry.
        subject: the name of the subject under which a sink registers the schema; None if
            `subject_naming` finds it.
        subject_naming: how the subject is named: "topic" (`orders-value`), "record"
            (`shop.Order`), "topic-record" (`orders-shop.Order`), or a function of the topic,
            whether the schema is of keys, and the name of the record.
        auto_register: whether a sink registers the schema. With False, it must be there.

    Raises:
        GraphError: if the format cannot be in a registry, or an argument is unknown.

    Examples:
        >>> schema = {"type": "record", "name": "User", "fields": []}
        >>> users = Registered(Avro(schema), SchemaRegistry("http://localhost:8081"))
        >>> users.on_error
        'fail'
    """

    def __init__(
        self,
        format: MessageFormat[Any],
        registry: SchemaRegistry,
        *,
        subject: str | None = None,
        subject_naming: str | SubjectName = "topic",
        auto_register: bool = True,
    ) -> None:
        if type(format) not in _CODECS:
            raise GraphError(
                f"Registered takes Avro(...), Json(...) or Protobuf(...), not {format!r}"
            )
        if not isinstance(registry, SchemaRegistry):
            raise GraphError(f"Registered takes a SchemaRegistry, not {registry!r}")
        if isinstance(subject_naming, str) and subject_naming not in _STRATEGIES:
            known = ", ".join(map(repr, _STRATEGIES))
            raise GraphError(f"subject_naming is {known} or a function, not {subject_naming!r}")
        super().__init__(on_error=format.on_error)
        self.format, self.registry = format, registry
        self.subject, self.auto_register = subject, auto_register
        self.subject_naming = subject_naming
        self._codec: _Codec = _CODECS[type(format)](format)
        self._context = SchemaContext()
        self._decoders: dict[int, Decode] = {}
        self._head = b""

    def open(self, context: SchemaContext) -> None:
        """Open the format. The registry is asked when the first message comes."""
        self._context = context
        self._codec = _CODECS[type(self.format)](copy.copy(self.format))
        self._decoders, self._head = {}, b""

    # ---- read

    def deserialize(self, messages: Sequence[bytes]) -> list[Any]:
        """Return the record of each message.

        Raises:
            ValueError: if a message does not fit.
            JobError: if the registry cannot be reached.
        """
        head = messages[0][: _HEAD.size] if messages else b""
        if all(message[: _HEAD.size] == head for message in messages):
            return self._decode(head, messages)
        records: list[Any] = []
        begin = 0
        for end in range(1, len(messages) + 1):
            head = messages[begin][: _HEAD.size]
            if end == len(messages) or messages[end][: _HEAD.size] != head:
                records += self._decode(head, messages[begin:end])
                begin = end
        return records

    def _decode(self, head: bytes, messages: Sequence[bytes]) -> list[Any]:
        """Decode messages with the same head."""
        if not messages:
            return []
        if len(head) < _HEAD.size or head[0] != 0:
            raise ValueError(
                "it does not begin with a zero byte and the id of a schema, so it was not written "
                "with a schema registry"
            )
        id = _HEAD.unpack(head)[1]
        decode = self._decoders.get(id)
        if decode is None:
            schema = self.registry.schema(id, self._codec.text_format)
            if schema.type != self._codec.type:
                raise ValueError(
                    f"schema {id} is {schema.type}, and {type(self.format).__name__} reads "
                    f"{self._codec.type}"
                )
            decode = self._decoders[id] = self._codec.decoder(id, schema)
        return decode([message[_HEAD.size :] for message in messages])

    # ---- write

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return each record, with the id of the schema before it.

        Raises:
            JobError: if the registry refuses the schema, or cannot be reached.
        """
        if not self._head:
            self._head = _HEAD.pack(0, self._register()) + self._codec.prefix
        head = self._head
        return [head + data for data in self._codec.encode(records)]

    def _register(self) -> int:
        """Register the schema of the format, and return its id."""
        codec, subject = self._codec, self.subject
        if subject is None:
            name = self.subject_naming
            strategy = _STRATEGIES[name] if isinstance(name, str) else name
            subject = strategy(self._context.topic, self._context.is_key, codec.record_name)
        look_up = not self.auto_register
        references: list[Reference] = []
        for name, text in codec.references:
            parts = [one for one in references if one.name in codec.imports_of(name)]
            version = self.registry.register(name, codec.type, text, parts, only_look_up=look_up)[1]
            references.append(Reference(name, name, version))
        parts = [one for one in references if one.name in codec.imports_of("")]
        return self.registry.register(subject, codec.type, codec.text, parts, only_look_up=look_up)[
            0
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_codec": None, "_decoders": {}, "_head": b""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._codec = _CODECS[type(self.format)](self.format)


class _Codec(ABC):
    """Describes a format to a registry.

    Arguments:
        format: the format.
    """

    #: The type of the schema, as registries name it.
    type: str
    #: The form in which a schema is requested; None for its own text.
    text_format: str | None = None
    #: The bytes between the id and the data of a message.
    prefix = b""
    #: The names and texts of schemas that the schema refers to, each after its own references.
    references: Sequence[tuple[str, str]] = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The text of the schema, for a sink."""

    @property
    @abstractmethod
    def record_name(self) -> str:
        """The full name of the record."""

    @abstractmethod
    def decoder(self, id: int, schema: RegisteredSchema) -> Decode:
        """Return a function that decodes messages that were written with a schema.

        Raises:
            ValueError: if they cannot be read.
        """

    @abstractmethod
    def encode(self, records: Sequence[Any]) -> Sequence[bytes]:
        """Return the data of each record."""

    def imports_of(self, name: str) -> Sequence[str]:
        """Return the names that a referenced schema refers to; the schema's own for ""."""
        del name
        return ()


class _AvroCodec(_Codec):
    type = "AVRO"

    def __init__(self, format: Avro[Any]) -> None:
        self._format = format
        self._encode: Callable[[Any], bytes] | None = None
        self._reader = format.schema if format.reader_schema is None else format.reader_schema

    @property
    def text(self) -> str:
        return json.dumps(self._schema())

    @property
    def record_name(self) -> str:
        return record_name(self._schema())

    def _schema(self) -> Any:
        if self._format.schema is None:
            raise GraphError("a sink needs the schema of its messages: write Avro(schema)")
        return self._format.schema

    def decoder(self, id: int, schema: RegisteredSchema) -> Decode:
        writer, reader = json.loads(schema.text), self._reader
        if schema.references:
            writer = _with_references(writer, schema.references)
        if reader is not None:
            reason = why_unreadable(writer, reader)
            if reason is not None:
                raise ValueError(f"schema {id} cannot be read with the schema of Avro(): {reason}")
        return avro_decoder(writer, reader, self._format.type)

    def encode(self, records: Sequence[Any]) -> Sequence[bytes]:
        if self._encode is None:
            self._encode = avro_encoder(self._schema())
        return list(map(self._encode, records))


def _with_references(writer: Any, references: Sequence[tuple[str, str]]) -> Any:
    """Return a schema with the named types that other schemas define."""
    package = fastavro()
    named: dict[str, Any] = {}
    for _, text in references:
        package.parse_schema(json.loads(text), named)
    return package.schema.expand_schema(package.parse_schema(writer, named))


class _JsonCodec(_Codec):
    type = "JSON"

    def __init__(self, format: Json[Any]) -> None:
        self._format = format

    @property
    def text(self) -> str:
        if self._format.type is Any:
            raise GraphError("a sink needs the type of its messages: write Json(type)")
        return json_schema_text(self._format.type)

    @property
    def record_name(self) -> str:
        kind: Any = self._format.type
        return getattr(kind, "__name__", str(kind))

    def decoder(self, id: int, schema: RegisteredSchema) -> Decode:
        del id, schema  # the type of the format checks the messages
        return self._format.deserialize

    def encode(self, records: Sequence[Any]) -> Sequence[bytes]:
        return self._format.serialize(records)


class _ProtobufCodec(_Codec):
    type = "PROTOBUF"
    text_format = "serialized"

    def __init__(self, format: Protobuf) -> None:
        self._format = format
        self._descriptor = descriptor = format.message_class.DESCRIPTOR
        self.prefix = _indices(_place(descriptor))
        self._files: dict[str, Any] = {}
        self._add(descriptor.file)
        self._files.pop(descriptor.file.name)
        self.references = [(name, _base64(file)) for name, file in self._files.items()]

    def _add(self, file: Any) -> None:
        if file.name not in self._files and not file.name.startswith("google/protobuf/"):
            for dependency in file.dependencies:
                self._add(dependency)
            self._files[file.name] = file

    @property
    def text(self) -> str:
        return _base64(self._descriptor.file)

    @property
    def record_name(self) -> str:
        name: str = self._descriptor.full_name
        return name

    def imports_of(self, name: str) -> Sequence[str]:
        file = self._files[name] if name else self._descriptor.file
        return [dependency.name for dependency in file.dependencies]

    def decoder(self, id: int, schema: RegisteredSchema) -> Decode:
        pb2 = library("google.protobuf.descriptor_pb2", "protobuf", "Protobuf")
        try:
            file = pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        except (binascii.Error, library("google.protobuf.message", "protobuf", "").DecodeError):
            raise ValueError(f"schema {id} is not a serialized Protobuf file") from None
        wanted, decode = self.record_name, self._format.deserialize

        def decode_all(messages: Sequence[bytes]) -> list[Any]:
            data = []
            for message in messages:
                place, size = _read_indices(message)
                name = _name_at(file, place)
                if name != wanted:
                    raise ValueError(f"it is a {name}, and not a {wanted}")
                data.append(message[size:])
            return decode(data)

        return decode_all

    def encode(self, records: Sequence[Any]) -> Sequence[bytes]:
        return self._format.serialize(records)


_CODECS: dict[type, Any] = {Avro: _AvroCodec, Json: _JsonCodec, Protobuf: _ProtobufCodec}


def _base64(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def _place(descriptor: Any) -> list[int]:
    """Return the index of a message type in its file, after those of the types around it."""
    place: list[int] = []
    while descriptor is not None:
        around = descriptor.containing_type
        names = (
            descriptor.file.message_types_by_name if around is None else around.nested_types_by_name
        )
        place.insert(0, list(names).index(descriptor.name))
        descriptor = around
    return place


def _name_at(file: Any, place: Sequence[int]) -> str:
    """Return the full name of the message type at a place of a file."""
    parts = [file.package] if file.package else []
    types = file.message_type
    for index in place:
        if index >= len(types):
            raise ValueError(f"its schema has no message type at {list(place)}")
        parts.append(types[index].name)
        types = types[index].nested_type
    return ".".join(parts)


def _indices(place: Sequence[int]) -> bytes:
    """Return the bytes of a place: its length and its numbers; one zero for the first type."""
    if list(place) == [0]:
        return b"\0"
    return b"".join(_varint(number) for number in (len(place), *place))


def _varint(number: int) -> bytes:
    """Return a number as Avro and Confluent write it: zigzag, seven bits a byte."""
    number <<= 1
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)


def _read_indices(message: bytes) -> tuple[tuple[int, ...], int]:
    """Return the place at the beginning of a message, and the number of its bytes."""
    if message[:1] == b"\0":
        return (0,), 1
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(message) or shift > 28:
                raise ValueError("it ends within the place of its type")
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value >> 1

    count = number()
    if count > 100:
        raise ValueError("the place of its type is not valid")
    return tuple(number() for _ in range(count)), position
