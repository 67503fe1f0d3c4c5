"""The formats of `FileSource` and `FileSink`: lines of text, JSON lines, and CSV.

A format converts decoded text to records, and records to bytes. It does not open files;
`file_cursors.py` does. Users define their own formats as subclasses of `LineFormat`.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol

from penstock.connectors.bad_messages import BadMessages, check_on_error
from penstock.connectors.compressed_files import ReadableFile
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import Read
from penstock.dataflow.type_variables import T


class Cursor(Protocol):
    """The interface of the classes that read one file from a position."""

    def read(self, max_records: int) -> Read:
        """Return at most `max_records` records, and the position after them."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, kw_only=True)
class FileFormat(ABC, Generic[T]):
    """Defines how records are stored in a file.

    Arguments:
        encoding: the name of the text encoding. It must encode line ends, commas and quotes as in
            ASCII. UTF-8, Latin-1 and most other encodings do, but UTF-16 does not. A byte order
            mark at the beginning of a UTF-8 file is skipped.
        errors: the way to handle text that cannot be decoded or encoded, such as `strict` or
            `replace`. `bytes.decode` has a parameter of the same name and meaning.
        on_error: how a source handles a line or row that cannot be decoded or is not valid. "fail"
            fails the job, and names the file and the place. "skip" leaves out the line, counts it,
            and logs a warning. "side_output" emits a `BadMessage` to the side output
            `BAD_MESSAGES` of the source.

    Raises:
        GraphError: if `encoding`, `errors` or `on_error` is unknown, or the encoding is not like
            ASCII.
    """

    extension: ClassVar[str]

    encoding: str = "utf-8"
    errors: str = "strict"
    on_error: str = "fail"

    def __post_init__(self) -> None:
        check_on_error("a file format", self.on_error)
        try:
            name = codecs.lookup(self.encoding).name
            codecs.lookup_error(self.errors)
            is_like_ascii = '\r\n,"'.encode(name) == b'\r\n,"'
        except LookupError as error:
            raise GraphError(f"a file format cannot be made: {error}") from None
        # `utf-8-sig` and `utf-8` have the same effect here: a byte order mark is skipped when a
        # file is read, and it is never written.
        name = "utf-8" if name == "utf-8-sig" else name
        if name != "utf-8" and not is_like_ascii:
            raise GraphError(
                f"files in {self.encoding} cannot be cut at line ends: convert them to UTF-8"
            )
        object.__setattr__(self, "encoding", name)

    @property
    def name(self) -> str:
        """The name of the format in errors."""
        return type(self).__name__

    @abstractmethod
    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return a function that encodes batches of records for one file.

        The function takes a batch, and returns the bytes to append to the file. If a record cannot
        be encoded, it raises a `JobError` that shows this record.
        """

    def encode(self, text: str) -> bytes:
        """Return the encoded bytes of a text.

        Raises:
            JobError: if the encoding does not contain a character of the text.
        """
        try:
            return text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            part = text[max(0, error.start - 20) : error.end + 20]
            raise JobError(
                f"text cannot be encoded as {self.encoding}: {error.reason}; "
                f"set encoding= or errors= of the format",
                record=reprlib.repr(part),
            ) from error


class BinaryFormat(FileFormat[T]):
    """The base class of formats whose files only their own cursor can read, such as `AvroFiles`.

    A file is one split.
    """

    @abstractmethod
    def open_cursor(self, file: ReadableFile, position: Any, bad: BadMessages) -> Cursor:
        """Return a cursor that reads a file from a position.

        Arguments:
            file: the file.
            position: the position that the cursor's last read returned; None for the beginning.
            bad: decides about bad records.
        """


class LineFormat(FileFormat[T]):
    """The base class of formats that store one record per line.

    A subclass defines `parse`, which converts lines to records, and `render`, which converts
    records to lines. By default, `parse` returns the lines themselves.
    """

    def parse(self, lines: list[str]) -> list[Any]:
        """Return the records that the lines contain.

        Arguments:
            lines: the lines without their line ends. A line contains one record, or none.

        Raises:
            ValueError: if a line is not valid. The caller then parses the lines one by one to find
                the invalid lines, and raises a `JobError` that names the first, or skips them.
        """
        return lines

    @abstractmethod
    def render(self, batch: list[Any]) -> list[str]:
        """Return one line for each record of a batch, without line ends.

        If this method raises an exception, the job fails with a `JobError` that shows the
        exception's message and the record.
        """

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return a function that encodes the lines that `render` returns."""
        return self._encode_lines

    def _encode_lines(self, batch: list[Any]) -> bytes:
        try:
            lines = self.render(batch)
        except Exception as error:
            raise JobError(
                f"{type(self).__name__} cannot write a record: {error}",
                record=_culprit(self.render, batch),
            ) from error
        text = "\n".join(lines) + "\n"
        if text.count("\n") != len(lines):
            line = next(line for line in lines if "\n" in line)
            raise JobError(
                "a record contains a line end, so it would be read back as several: replace it, "
                "or write CSV or JSON lines",
                record=reprlib.repr(line),
            )
        return self.encode(text)


@dataclass(frozen=True)
class TextLines(LineFormat[str]):
    r"""Stores each record as one line of text.

    A source reads each line as a str without its line end. Only `\n` ends a line. One `\r` before
    the `\n`, or at the end of the file, is removed. Other separators, such as form feeds and
    U+2028, are part of the line. An empty line is an empty record.

    A sink writes `str(record)`. It raises a `JobError` if this text contains a line end.

    Arguments:
        encoding: the name of the text encoding; see `FileFormat`.
        errors: the way to handle text that cannot be decoded or encoded; see `FileFormat`.
        on_error: how a source handles a bad line; see `FileFormat`.

    Examples:
        >>> _ = Path("words.txt").write_text("to be\nor not\n")
        >>> list(env.from_source(FileSource("words.txt", TextLines())).execute_and_collect())
        ['to be', 'or not']
    """

    extension = ".txt"

    def render(self, batch: list[Any]) -> list[str]:
        """Return `str(record)` for each record."""
        return list(map(str, batch))


@dataclass(frozen=True)
class JsonLines(LineFormat[Any]):
    r"""Stores one JSON value per line.

    Blank lines are skipped. A tuple is written as a JSON array, and read back as a list.

    Arguments:
        encoding: the name of the text encoding; see `FileFormat`.
        errors: the way to handle text that cannot be decoded or encoded; see `FileFormat`.
        on_error: how a source handles a bad line; see `FileFormat`.

    Examples:
        >>> _ = Path("users.jsonl").write_text('{"name": "ann"}\n{"name": "bob"}\n')
        >>> list(env.from_source(FileSource("users.jsonl", JsonLines())).execute_and_collect())
        [{'name': 'ann'}, {'name': 'bob'}]
    """

    extension = ".jsonl"

    def parse(self, lines: list[str]) -> list[Any]:
        """Return the decoded JSON value of each line that is not blank."""
        return list(map(json.loads, filter(str.strip, lines)))

    def render(self, batch: list[Any]) -> list[str]:
        """Return each record as JSON. Characters outside ASCII are not escaped."""
        return list(map(_JSON.encode, batch))


_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True)
class CsvRows(FileFormat[Any]):
    r"""Stores one record per row of comma separated values.

    The format follows the rules of Python's `csv` module. Quoted fields may contain line ends. All
    values are read as str. Blank rows are skipped.

    Arguments:
        encoding: the name of the text encoding; see `FileFormat`.
        errors: the way to handle text that cannot be decoded or encoded; see `FileFormat`.
        on_error: how a source handles a bad line; see `FileFormat`.
        fields: the names of the columns, or None. If it is None, a source takes the names from the
            header of each file. A sink takes the names from the first record of each file.
        header: whether the first row of each file contains the names of the columns.
        tuples: whether a source returns tuples instead of dicts. It always returns tuples if the
            names of the columns are unknown.
        delimiter: the character between two fields.
        quote: the character before and after a field that contains special characters.

    Raises:
        GraphError: if `fields` is a str, if two fields have the same name, or if `delimiter` or
            `quote` is not one character.

    Examples:
        >>> _ = Path("users.csv").write_text("name,age\nann,31\n")
        >>> list(env.from_source(FileSource("users.csv", CsvRows())).execute_and_collect())
        [{'name': 'ann', 'age': '31'}]
    """

    extension = ".csv"

    fields: Sequence[str] | None = None
    header: bool = True
    tuples: bool = False
    delimiter: str = ","
    quote: str = '"'

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fields, str):
            raise GraphError("fields of CSV rows is a list of names, not one text")
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))
            if len(set(self.fields)) != len(self.fields):
                raise GraphError(f"fields of CSV rows must differ: {self.fields}")
        try:
            csv.reader([], delimiter=self.delimiter, quotechar=self.quote)
        except (TypeError, csv.Error) as error:
            raise GraphError(f"not usable for CSV rows: {error}") from None

    def parser(self, names: Sequence[str] | None) -> Callable[[list[list[str]]], list[Any]]:
        """Return a function that converts rows to records.

        Arguments:
            names: the names of the columns, or None if they are unknown.
        """
        if self.tuples or names is None:
            return lambda rows: list(map(tuple, rows))
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return a function that encodes records as CSV rows.

        In its first call, the function writes the header if `header` is set.
        """
        return _CsvEncoder(self)


class _Rows(io.StringIO):
    """Text of CSV rows that end with a newline, where `csv.writer` ends them with two characters.

    Before Python 3.13, `csv.writer` quotes only the line ends that are part of its terminator. If
    this were a newline alone, a carriage return in a value would not be quoted, and a reader would
    end the row there.
    """

    def write(self, row: str) -> int:
        """Add a row. `csv.writer` calls this once for each."""
        return super().write(row.removesuffix("\r\n") + "\n")


class _CsvEncoder:
    """Encodes records as the CSV rows of one file.

    The values of a dict are written in the order of the columns. The values of another iterable are
    written in their own order.
    """

    def __init__(self, format: CsvRows) -> None:
        self._format = format
        self._fields = None if format.fields is None else list(format.fields)
        self._is_first = True

    def __call__(self, batch: list[Any]) -> bytes:
        text = _Rows(newline="")
        writer = csv.writer(text, delimiter=self._format.delimiter, quotechar=self._format.quote)
        if self._is_first:
            self._begin(writer, batch[0])
        try:
            writer.writerows(self._rows(batch))
        except Exception as error:
            raise JobError(
                f"a record cannot be written as a CSV row: {error}",
                record=_culprit(self._rows, batch),
            ) from error
        return self._format.encode(text.getvalue())

    def _begin(self, writer: Any, record: Any) -> None:
        if self._fields is None:
            names = record if isinstance(record, Mapping) else getattr(record, "_fields", None)
            self._fields = None if names is None else list(names)
        if self._format.header:
            if self._fields is None:
                raise JobError(
                    "the records have no field names for the header row: set fields= or "
                    "header=False of the CSV format",
                    record=reprlib.repr(record),
                )
            writer.writerow(self._fields)
        self._is_first = False

    def _rows(self, batch: list[Any]) -> list[list[Any]]:
        fields = self._fields
        rows = []
        for record in batch:
            if isinstance(record, Mapping):
                row = [record[field] for field in fields or record]
                size = len(record)
            elif isinstance(record, (str, bytes)):
                raise TypeError(f"it is {type(record).__name__}, not a dict, tuple or list")
            else:
                row = list(record)
                size = len(row)
            if fields is not None and size != len(fields):
                raise ValueError(f"it has {size} fields, but the columns are {fields}")
            rows.append(row)
        return rows


def _culprit(render: Callable[[list[Any]], Any], batch: list[Any]) -> str | None:
    """Return the `repr` of the first record for which `render` fails, or None."""
    for record in batch:
        try:
            render([record])
        except Exception:
            return reprlib.repr(record)
    return None
