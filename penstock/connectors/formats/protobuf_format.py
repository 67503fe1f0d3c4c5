"""Protobuf messages, with the classes that `protoc` generates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.connectors.formats.libraries import library
from penstock.connectors.formats.schemas import MessageFormat, SchemaContext
from penstock.dataflow.errors import GraphError

_FORMS = ("dict", "message")


def _protobuf() -> Any:
    return library("google.protobuf.message", "protobuf", "Protobuf")


class Protobuf(MessageFormat[Any]):
    """Each message is a Protobuf message of one type.

    As a dict, a record has all fields of the type, under their names in the `.proto` file. A field
    that is not set has its default, or None if it is a message or `optional`. An enum is its
    number. Records that are messages themselves cannot be sent to other tasks; a map function that
    comes right after the source can use them.

    A sink writes dicts, of which missing fields and None are not set, and messages.

    It needs `pip install 'penstock[protobuf]'`.

    Arguments:
        message_class: the generated class of the message, such as `orders_pb2.Order`. Workers
            import its module, or get its definition if it is in no module.
        form: "dict" or "message", for the records of a source.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Raises:
        GraphError: if `message_class` is not the class of a message, or the package is missing.

    Examples:
        >>> from google.protobuf.wrappers_pb2 import StringValue
        >>> Protobuf(StringValue).serialize([{"value": "ann"}])
        [b'\\n\\x03ann']
        >>> Protobuf(StringValue).deserialize([b"\\n\\x03ann"])
        [{'value': 'ann'}]
    """

    def __init__(self, message_class: Any, *, form: str = "dict", on_error: str = "fail") -> None:
        super().__init__(on_error=on_error)
        base = _protobuf().Message
        if not (isinstance(message_class, type) and issubclass(message_class, base)):
            raise GraphError(
                f"Protobuf takes a class that protoc has generated, such as orders_pb2.Order, "
                f"not {message_class!r}"
            )
        if form not in _FORMS:
            raise GraphError(f'form of Protobuf is "dict" or "message", not {form!r}')
        self.message_class: Any = message_class
        self.form = form
        self._convert: Callable[[Any], Any] | None = None

    def open(self, context: SchemaContext) -> None:
        """Make the function that converts messages to dicts."""
        del context
        if self.form == "dict":
            self._convert = dict_reader(self.message_class.DESCRIPTOR)

    def deserialize(self, messages: Sequence[bytes]) -> list[Any]:
        """Return the record of each message.

        Raises:
            ValueError: if a message does not fit.
        """
        parse = self.message_class.FromString
        try:
            records = list(map(parse, messages))
        except _protobuf().DecodeError as error:
            raise ValueError(str(error)) from error
        if self.form == "message":
            return records
        if self._convert is None:
            self.open(SchemaContext())
        assert self._convert is not None
        return list(map(self._convert, records))

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return each record as Protobuf.

        Raises:
            TypeError: if a record is neither a dict nor a message of this type.
        """
        return list(map(self._encode, records))

    def _encode(self, record: Any) -> bytes:
        if isinstance(record, self.message_class):
            message: Any = record
        elif isinstance(record, dict):
            message = self.message_class(**record)
        else:
            raise TypeError(
                f"it is {type(record).__name__}, and neither a dict nor a "
                f"{self.message_class.__name__}"
            )
        data: bytes = message.SerializeToString()
        return data

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_convert": None}
        kind = self.message_class
        module = sys.modules.get(kind.__module__)
        if getattr(module, kind.__qualname__, None) is not kind:
            state["message_class"] = (files_of(kind.DESCRIPTOR.file), kind.DESCRIPTOR.full_name)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["message_class"], tuple):
            state["message_class"] = message_class_of(*state["message_class"])
        vars(self).update(state)


def files_of(file: Any) -> list[bytes]:
    """Return the definition of a file and of those that it imports, each after its imports."""
    found: dict[str, bytes] = {}

    def add(one: Any) -> None:
        if one.name not in found:
            for dependency in one.dependencies:
                add(dependency)
            found[one.name] = one.serialized_pb

    add(file)
    return list(found.values())


def message_class_of(files: Sequence[bytes], name: str) -> Any:
    """Return the class of a message.

    Arguments:
        files: the definitions of files, as `files_of` returns them.
        name: the full name of the message.
    """
    pool = library("google.protobuf.descriptor_pool", "protobuf", "Protobuf").DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file)
    factory = library("google.protobuf.message_factory", "protobuf", "Protobuf")
    return factory.GetMessageClass(pool.FindMessageTypeByName(name))


def dict_reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """Return a function that converts messages of a type to dicts."""
    return _reader(descriptor, {})


def _reader(descriptor: Any, readers: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the function for a type, from `readers` if it is there: types may be recursive."""
    name = descriptor.full_name
    if name in readers:
        return lambda message: readers[name](message)
    readers[name] = None
    plain = [field.name for field in descriptor.fields if _is_plain(field)]
    others = [
        (field.name, _field(field, readers)) for field in descriptor.fields if not _is_plain(field)
    ]

    def read(message: Any) -> dict[str, Any]:
        record = {field: getattr(message, field) for field in plain}
        for field, get in others:
            record[field] = get(message)
        return record

    readers[name] = read
    return read


def _is_plain(field: Any) -> bool:
    """Return whether a field is a number, text or bytes that always has a value."""
    return field.message_type is None and not field.is_repeated and not field.has_presence


def _field(field: Any, readers: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function that gets the value of a field that is not plain."""
    name, kind = field.name, field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value = kind.fields_by_name["value"].message_type
        if value is None:
            return lambda message: dict(getattr(message, name))
        convert = _reader(value, readers)
        return lambda message: {key: convert(item) for key, item in getattr(message, name).items()}
    if kind is not None:
        convert = _reader(kind, readers)
        if field.is_repeated:
            return lambda message: list(map(convert, getattr(message, name)))
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if field.is_repeated:
        return lambda message: list(getattr(message, name))
    return lambda message: getattr(message, name) if message.HasField(name) else None
