"""The formats without a structure: text and raw bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from penstock.connectors.formats.schemas import MessageFormat
from penstock.dataflow.errors import GraphError


class SimpleStringSchema(MessageFormat[str]):
    """Each message is a text. (PyFlink: `SimpleStringSchema`.)

    Arguments:
        charset: the name of the text encoding.
        errors: the way to handle bytes that cannot be decoded, and text that cannot be encoded,
            such as `strict` or `replace`; see `bytes.decode`.
        on_error: how a source handles a message that is not valid text; see
            `DeserializationSchema`.

    Raises:
        GraphError: if `charset`, `errors` or `on_error` is unknown.

    Examples:
        >>> SimpleStringSchema().deserialize([b"to be", b"or not"])
        ['to be', 'or not']
    """

    def __init__(
        self, charset: str = "UTF-8", *, errors: str = "strict", on_error: str = "fail"
    ) -> None:
        super().__init__(on_error=on_error)
        try:
            codecs.lookup(charset)
            codecs.lookup_error(errors)
        except LookupError as error:
            raise GraphError(f"a SimpleStringSchema cannot be made: {error}") from None
        self.charset, self.errors = charset, errors

    def deserialize(self, messages: Sequence[bytes]) -> list[str]:
        """Return each message as a text."""
        charset, errors = self.charset, self.errors
        return [str(message, charset, errors) for message in messages]

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return `str(record)` of each record, encoded."""
        charset, errors = self.charset, self.errors
        return [str(record).encode(charset, errors) for record in records]


class ByteArraySchema(MessageFormat[bytes]):
    """Each message is a record of bytes, without a change. (PyFlink: `ByteArraySchema`.)

    Examples:
        >>> ByteArraySchema().serialize([b"to be", bytearray(b"or not")])
        [b'to be', b'or not']
    """

    def __init__(self) -> None:
        super().__init__()

    def deserialize(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the messages."""
        return list(map(bytes, messages))

    def serialize(self, records: Sequence[Any]) -> list[bytes]:
        """Return the records.

        Raises:
            TypeError: if a record is not bytes.
        """
        for record in records:
            if not isinstance(record, bytes | bytearray | memoryview):
                raise TypeError(f"it is {type(record).__name__}, and not bytes")
        return list(map(bytes, records))
