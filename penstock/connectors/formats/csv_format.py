"""CSV messages: each message is one row, as in PyFlink's row schemas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Self

from penstock.connectors.bad_messages import check_on_error
from penstock.connectors.formats.rows import row_type, value_reader, value_writer
from penstock.connectors.formats.schemas import DeserializationSchema, SerializationSchema
from penstock.dataflow.errors import GraphError
from penstock.dataflow.types import Row, RowKind, TypeInformation
from penstock.dataflow.types.composite_types import ArrayTypeInfo


class _CsvOptions:
    """The characters of CSV rows.

    Arguments:
        type_info: the type of the rows.
        field_delimiter: the character between two fields.
        quote_character: the character before and after a field that contains special characters;
            None if no field is quoted.
        escape_character: the character that takes the meaning from the next one; None if there is
            none.
        array_element_delimiter: the text between two items of a list in a field.
        null_literal: the text of a field without a value; None if an empty field has none, and is
            an empty text only if the field is a text.
    """

    def __init__(
        self,
        type_info: TypeInformation[Any],
        field_delimiter: str,
        quote_character: str | None,
        escape_character: str | None,
        array_element_delimiter: str,
        null_literal: str | None,
    ) -> None:
        name = type(self).__name__
        self.type_info = row_type(name, type_info)
        self.null_literal = null_literal
        self.array_element_delimiter = array_element_delimiter
        self._dialect: dict[str, Any] = {
            "delimiter": field_delimiter,
            "quotechar": quote_character,
            "escapechar": escape_character,
            "quoting": csv.QUOTE_NONE if quote_character is None else csv.QUOTE_MINIMAL,
        }
        try:
            csv.reader([], **self._dialect)
        except (TypeError, ValueError, csv.Error) as error:
            raise GraphError(f"{name} cannot be made: {error}") from None

    def _is_array(self, kind: TypeInformation[Any]) -> bool:
        return isinstance(kind, ArrayTypeInfo) and not kind.is_of_bytes


class _Builder:
    """Collects the options of a CSV schema."""

    def __init__(self, type_info: TypeInformation[Any]) -> None:
        self._options: dict[str, Any] = {"type_info": row_type("Builder", type_info)}

    def set_field_delimiter(self, delimiter: str) -> Self:
        """Set the character between two fields."""
        return self._set("field_delimiter", delimiter)

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        """Set the text between two items of a list in a field."""
        return self._set("array_element_delimiter", delimiter)

    def set_quote_character(self, c: str) -> Self:
        """Set the character before and after a field that contains special characters."""
        return self._set("quote_character", c)

    def set_escape_character(self, c: str) -> Self:
        """Set the character that takes the meaning from the next one."""
        return self._set("escape_character", c)

    def set_null_literal(self, null_literal: str) -> Self:
        """Set the text of a field without a value."""
        return self._set("null_literal", null_literal)

    def _set(self, name: str, value: Any) -> Self:
        self._options[name] = value
        return self


class CsvRowDeserializationSchema(DeserializationSchema[Row], _CsvOptions):
    """Each message is a row of CSV, which becomes a `Row`. (PyFlink: this name.)

    Arguments:
        type_info: the type of the rows.
        field_delimiter: the character between two fields.
        quote_character: the character before and after a field that contains special characters.
        escape_character: the character that takes the meaning from the next one; None if there is
            none.
        array_element_delimiter: the text between two items of a list in a field.
        null_literal: the text of a field without a value. With None, an empty field of another type
            than text has none.
        allow_comments: whether a message that begins with `#` is a comment. It is then skipped.
        on_error: how a source handles a message that does not fit; see `DeserializationSchema`.

    Examples:
        >>> kind = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
        >>> schema = CsvRowDeserializationSchema.Builder(kind).set_field_delimiter(";").build()
        >>> schema.deserialize([b"1;ann"])
        [[Row(id=1, name='ann')]]
    """

    #: A comment is no record.
    one_to_one = False

    def __init__(
        self,
        type_info: TypeInformation[Any],
        *,
        field_delimiter: str = ",",
        quote_character: str | None = '"',
        escape_character: str | None = None,
        array_element_delimiter: str = ";",
        null_literal: str | None = None,
        allow_comments: bool = False,
        on_error: str = "fail",
    ) -> None:
        _CsvOptions.__init__(
            self,
            type_info,
            field_delimiter,
            quote_character,
            escape_character,
            array_element_delimiter,
            null_literal,
        )
        check_on_error("CsvRowDeserializationSchema", on_error)
        self.on_error = on_error
        self.allow_comments = allow_comments

    def deserialize(self, messages: Sequence[bytes | None]) -> list[list[Row]]:
        """Return the row of each message in a list; an empty list for a comment or a tombstone.

        Raises:
            ValueError: if a message is not one row of this type.
        """
        names = tuple(self.type_info.get_field_names())
        readers = [self._field_reader(kind) for kind in self.type_info.get_field_types()]
        texts = ["" if message is None else str(message, "utf-8") for message in messages]
        parts: list[list[Row]] = []
        for message, text, row in zip(messages, texts, self._rows(texts), strict=True):
            if message is None or (self.allow_comments and text.startswith("#")):
                parts.append([])
                continue
            if len(row) != len(names):
                raise ValueError(f"it has {len(row)} fields instead of {len(names)}")
            values = []
            for name, read, item in zip(names, readers, row, strict=True):
                try:
                    values.append(read(item))
                except ValueError as error:
                    raise ValueError(f"field {name!r}: {error}") from None
            parts.append([Row.of_parts(RowKind.INSERT, names, values)])
        return parts

    def _rows(self, texts: list[str]) -> Iterator[list[str]]:
        """Yield the fields of each message."""
        for text in texts:
            try:
                rows = list(csv.reader(io.StringIO(text, newline=""), strict=True, **self._dialect))
            except csv.Error as error:
                raise ValueError(str(error)) from None
            if len(rows) > 1:
                raise ValueError(f"it has {len(rows)} rows instead of one")
            yield rows[0] if rows else [""]

    def _field_reader(self, kind: TypeInformation[Any]) -> Any:
        """Return a function that converts the text of a field."""
        is_array, null = self._is_array(kind), self.null_literal
        convert = value_reader(kind.item_type if is_array else kind, "csv")  # type: ignore[attr-defined]
        separator = self.array_element_delimiter

        def read(text: str) -> Any:
            if text == null or (null is None and not text and kind.name not in ("STRING", "CHAR")):
                return None
            if is_array:
                return [convert(item) for item in text.split(separator)]
            return convert(text)

        return read

    class Builder(_Builder):
        """Builds a `CsvRowDeserializationSchema`. (PyFlink: this name.)"""

        def set_allow_comments(self) -> Self:
            """Skip messages that begin with `#`."""
            return self._set("allow_comments", True)

        def set_ignore_parse_errors(self) -> Self:
            """Skip, count and log messages that do not fit, like `set_on_error("skip")`."""
            return self._set("on_error", "skip")

        def set_on_error(self, on_error: str) -> Self:
            """Set how a source handles a message that does not fit."""
            return self._set("on_error", on_error)

        def build(self) -> CsvRowDeserializationSchema:
            """Return the schema."""
            return CsvRowDeserializationSchema(**self._options)


class CsvRowSerializationSchema(SerializationSchema[Row], _CsvOptions):
    """Writes each `Row` as a row of CSV. (PyFlink: this name.)

    Arguments:
        type_info: the type of the rows.
        field_delimiter: the character between two fields.
        quote_character: the character before and after a field that contains special characters.
        escape_character: the character that takes the meaning from the next one; None if there is
            none.
        array_element_delimiter: the text between two items of a list in a field.
        null_literal: the text of a field without a value; None is an empty text.
        line_delimiter: the text at the end of each message.

    Examples:
        >>> kind = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
        >>> CsvRowSerializationSchema.Builder(kind).build().serialize([Row(1, "ann")])
        [b'1,ann']
    """

    def __init__(
        self,
        type_info: TypeInformation[Any],
        *,
        field_delimiter: str = ",",
        quote_character: str | None = '"',
        escape_character: str | None = None,
        array_element_delimiter: str = ";",
        null_literal: str | None = None,
        line_delimiter: str = "",
    ) -> None:
        super().__init__(
            type_info,
            field_delimiter,
            quote_character,
            escape_character,
            array_element_delimiter,
            null_literal,
        )
        self.line_delimiter = line_delimiter

    def serialize(self, records: Sequence[Row]) -> list[bytes]:
        """Return each row as CSV.

        Raises:
            ValueError: if a row does not have the type.
        """
        writers = [self._field_writer(kind) for kind in self.type_info.get_field_types()]
        lines: list[bytes] = []
        text = io.StringIO(newline="")
        # Before Python 3.13, only line ends that are part of the terminator are quoted in fields.
        writer = csv.writer(text, lineterminator="\r\n", **self._dialect)
        for record in records:
            row: Any = self.type_info.converted(record)
            try:
                writer.writerow([write(value) for write, value in zip(writers, row, strict=True)])
            except csv.Error as error:
                raise ValueError(str(error)) from None
            line = text.getvalue().removesuffix("\r\n")
            lines.append((line + self.line_delimiter).encode())
            text.seek(0)
            text.truncate()
        return lines

    def _field_writer(self, kind: TypeInformation[Any]) -> Any:
        """Return a function that makes the text of a field."""
        is_array, null = self._is_array(kind), self.null_literal or ""
        convert = value_writer(kind.item_type if is_array else kind, "csv")  # type: ignore[attr-defined]
        separator = self.array_element_delimiter

        def write(value: Any) -> Any:
            if value is None:
                return null
            return separator.join(map(convert, value)) if is_array else convert(value)

        return write

    class Builder(_Builder):
        """Builds a `CsvRowSerializationSchema`. (PyFlink: this name.)"""

        def set_line_delimiter(self, delimiter: str) -> Self:
            """Set the text at the end of each message."""
            return self._set("line_delimiter", delimiter)

        def disable_quote_character(self) -> Self:
            """Quote no field. A field that would have to be quoted is then an error."""
            return self._set("quote_character", None)

        def build(self) -> CsvRowSerializationSchema:
            """Return the schema."""
            return CsvRowSerializationSchema(**self._options)
