"""JSON messages, decoded with msgspec: `Json` with types of Python, and PyFlink's row schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from penstock.connectors.formats.libraries import library
from penstock.connectors.formats.record_types import RecordType
from penstock.connectors.formats.rows import row_reader, row_type, row_writer
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    MessageFormat,
    SchemaContext,
    SerializationSchema,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import T
from penstock.dataflow.types import Row, TypeInformation

if TYPE_CHECKING:
    import msgspec


def _msgspec(what: str) -> Any:
    return library("msgspec", "json", what)


def json_decoder(type: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return a decoder for JSON values of a type.

    Raises:
        GraphError: if msgspec is missing, or does not support the type.
    """
    json = _msgspec("Json").json
    try:
        return cast("msgspec.json.Decoder[Any]", json.Decoder(type, strict=strict))
    except (TypeError, ValueError, NameError) as error:
        raise GraphError(f"Json cannot decode to {type!r}: {error}") from None


def json_encoder() -> msgspec.json.Encoder:
    """Return an encoder that also encodes rows: as objects, or as arrays if they have no names."""
    return cast("msgspec.json.Encoder", _msgspec("Json").json.Encoder(enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return list(value) if value.get_field_names() is None else value.as_dict()
    if hasattr(value, "tolist"):
        return value.tolist()  # a number or an array of NumPy
    raise NotImplementedError(f"a {type(value).__name__} has no form in JSON")


def decode_all(
    decode: Callable[[bytes], Any], messages: Sequence[bytes], errors: type[Exception]
) -> list[Any]:
    """Return the decoded messages.

    Raises:
        ValueError: if a message cannot be decoded.
    """
    try:
        return list(map(decode, messages))
    except (errors, RecursionError) as error:
        raise ValueError(str(error)) from error


class Json(MessageFormat[T], Generic[T]):
    r"""Each message is a JSON value, of a type that is checked.

    The type may be a dataclass, a `NamedTuple`, a typed dict, a struct of msgspec, or any other
    type that msgspec knows, such as `dict[str, int]`, `datetime`, `Decimal`, enums and unions.
    Without a type, each value becomes a dict, list, str, int, float, bool or None. Fields that the
    type does not have are ignored. A message whose fields are missing or have the wrong type does
    not fit.

    A sink writes records of any of these types. A `NamedTuple` and a tuple are JSON arrays; a `Row`
    with names is an object.

    It needs `pip install 'penstock[json]'`.

    Arguments:
        type: the type of the records; None for plain values.
        strict: whether values must have the type's own form. With False, a text such as `"3"` is a
            number if the type wants one.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Raises:
        GraphError: if the type cannot be decoded, or msgspec is missing.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Item:
        ...     name: str
        >>> Json(Item).deserialize([b'{"name": "pen", "price": 3}'])
        [Item(name='pen')]
        >>> Json(Item).serialize([Item("pen")])
        [b'{"name":"pen"}']
        >>> Json(Item).deserialize([b'{"name": 7}'])
        Traceback (most recent call last):
        ...
        ValueError: Expected `str`, got `int` - at `$.name`
    """

    @overload
    def __init__(
        self: Json[Any], type: None = None, *, strict: bool = True, on_error: str = "fail"
    ) -> None: ...

    @overload
    def __init__(
        self: Json[T], type: type[T], *, strict: bool = True, on_error: str = "fail"
    ) -> None: ...

    # The form of a type that is no class, such as `Order | Refund`.
    @overload
    def __init__(
        self: Json[Any], type: object, *, strict: bool = True, on_error: str = "fail"
    ) -> None: ...

    def __init__(self, type: Any = None, *, strict: bool = True, on_error: str = "fail") -> None:
        super().__init__(on_error=on_error)
        self._type = RecordType(Any if type is None else type)
        self.strict = strict
        json_decoder(self.type, strict=strict)  # to find mistakes in the type now
        self._decode: Callable[[bytes], Any] | None = None
        self._encode: Callable[[Any], bytes] | None = None

    @property
    def type(self) -> Any:
        """The type of the records; `Any` for plain values."""
        return self._type.type

    def open(self, context: SchemaContext) -> None:
        """Make the decoder and the encoder."""
        del context
        self._decode = json_decoder(self.type, strict=self.strict).decode
        self._encode = json_encoder().encode

    def deserialize(self, messages: Sequence[bytes]) -> list[T]:
        """Return the value of each message.

        Raises:
            ValueError: if a message is not JSON, or its value has another type.
        """
        if self._decode is None:
            self.open(SchemaContext())
        assert self._decode is not None
        return decode_all(self._decode, messages, _msgspec("Json").DecodeError)

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return each record as JSON."""
        if self._encode is None:
            self.open(SchemaContext())
        assert self._encode is not None
        return list(map(self._encode, records))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_decode": None, "_encode": None}


class JsonRowDeserializationSchema(DeserializationSchema[Row]):
    """Each message is a JSON object, which becomes a `Row`. (PyFlink: this name.)

    A field that the object does not have is None.

    Arguments:
        type_info: the type of the rows.
        fail_on_missing_field: whether an object without one of the fields does not fit.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Examples:
        >>> schema = (
        ...     JsonRowDeserializationSchema.builder()
        ...     .type_info(Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()]))
        ...     .build()
        ... )
        >>> schema.deserialize([b'{"id": 1, "name": "ann"}'])
        [Row(id=1, name='ann')]
    """

    def __init__(
        self,
        type_info: TypeInformation[Any],
        fail_on_missing_field: bool = False,
        *,
        on_error: str = "fail",
    ) -> None:
        self.type_info = row_type("JsonRowDeserializationSchema", type_info)
        self.fail_on_missing_field = fail_on_missing_field
        self.on_error = on_error
        self._values: Json[Any] = Json()

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        """Return a builder."""
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, messages: Sequence[bytes]) -> list[Row]:
        """Return the row of each message.

        Raises:
            ValueError: if a message is not JSON, or does not have the type.
        """
        read = row_reader(self.type_info, "json", required=self.fail_on_missing_field)
        return list(map(read, self._values.deserialize(messages)))

    class Builder:
        """Builds a `JsonRowDeserializationSchema`. (PyFlink: this name.)"""

        def __init__(self) -> None:
            self._type_info: TypeInformation[Any] | None = None
            self._missing, self._on_error = False, "fail"

        def type_info(
            self, type_info: TypeInformation[Any]
        ) -> JsonRowDeserializationSchema.Builder:
            """Set the type of the rows."""
            self._type_info = type_info
            return self

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder:
            """Raise a `GraphError`: use `type_info`, or `Json` with a type."""
            del json_schema
            raise GraphError(
                "a JsonRowDeserializationSchema has its type from type_info(...), not from a JSON "
                "schema"
            )

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """Let objects without one of the fields not fit."""
            self._missing = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Skip, count and log messages that do not fit, like `on_error("skip")`."""
            return self.on_error("skip")

        def on_error(self, on_error: str) -> JsonRowDeserializationSchema.Builder:
            """Set how a source handles a message that does not fit."""
            self._on_error = on_error
            return self

        def build(self) -> JsonRowDeserializationSchema:
            """Return the schema.

            Raises:
                GraphError: if the type of the rows is not set.
            """
            if self._type_info is None:
                raise GraphError("call type_info(...) of the builder before build()")
            return JsonRowDeserializationSchema(
                self._type_info, self._missing, on_error=self._on_error
            )


class JsonRowSerializationSchema(SerializationSchema[Row]):
    """Writes each `Row` as a JSON object. (PyFlink: this name.)

    Arguments:
        type_info: the type of the rows.

    Examples:
        >>> schema = (
        ...     JsonRowSerializationSchema.builder()
        ...     .with_type_info(Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()]))
        ...     .build()
        ... )
        >>> schema.serialize([Row(1, "ann")])
        [b'{"id":1,"name":"ann"}']
    """

    def __init__(self, type_info: TypeInformation[Any]) -> None:
        self.type_info = row_type("JsonRowSerializationSchema", type_info)
        self._values: Json[Any] = Json()

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        """Return a builder."""
        return JsonRowSerializationSchema.Builder()

    def serialize(self, records: Sequence[Row]) -> list[bytes]:
        """Return each row as JSON.

        Raises:
            ValueError: if a row does not have the type.
        """
        return self._values.serialize(list(map(row_writer(self.type_info, "json"), records)))

    class Builder:
        """Builds a `JsonRowSerializationSchema`. (PyFlink: this name.)"""

        def __init__(self) -> None:
            self._type_info: TypeInformation[Any] | None = None

        def with_type_info(
            self, type_info: TypeInformation[Any]
        ) -> JsonRowSerializationSchema.Builder:
            """Set the type of the rows."""
            self._type_info = type_info
            return self

        def build(self) -> JsonRowSerializationSchema:
            """Return the schema.

            Raises:
                GraphError: if the type of the rows is not set.
            """
            if self._type_info is None:
                raise GraphError("call with_type_info(...) of the builder before build()")
            return JsonRowSerializationSchema(self._type_info)


def json_schema_text(type: Any) -> str:
    """Return the JSON schema of a type, as a schema registry has it.

    Raises:
        GraphError: if the type has none.
    """
    package = _msgspec("Json")
    try:
        schema = package.json.schema(type)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"{type!r} has no JSON schema: {error}") from None
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return str(package.json.encode(schema, order="sorted"), "utf-8")
