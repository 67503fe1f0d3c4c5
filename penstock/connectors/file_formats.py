"""Formats of `FileSource` and `FileSink`: lines of text, JSON lines, CSV.

A format turns decoded text into records, and records into bytes. `file_cursors.py` opens files
and keeps positions. A user's own format is a subclass of `LineFormat`.
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
from typing import Any, ClassVar

from penstock.dataflow.errors import GraphError, JobError

__all__ = ["CsvRows", "FileFormat", "JsonLines", "LineFormat", "TextLines"]


@dataclass(frozen=True, kw_only=True)
class FileFormat(ABC):
    """Define how a file holds records.

    Arguments:
        encoding: of the text. Line ends, commas and quotes must be single bytes in it, as in
            ASCII: UTF-8, Latin-1 and most others, but not UTF-16. A byte order mark at the
            beginning of a UTF-8 file is skipped.
        errors: how to handle text that cannot be decoded or encoded, as for `bytes.decode`.

    Raises:
        GraphError: if encoding or errors is unknown or unsuitable.
    """

    extension: ClassVar[str]

    encoding: str = "utf-8"
    errors: str = "strict"

    def __post_init__(self) -> None:
        try:
            name = codecs.lookup(self.encoding).name
            codecs.lookup_error(self.errors)
            is_like_ascii = '\r\n,"'.encode(name) == b'\r\n,"'
        except LookupError as error:
            raise GraphError(f"a file format cannot be made: {error}") from None
        # The mark is skipped on reading and never written, so both names mean the same.
        name = "utf-8" if name == "utf-8-sig" else name
        if name != "utf-8" and not is_like_ascii:
            raise GraphError(
                f"files in {self.encoding} cannot be cut at line ends: convert them to UTF-8"
            )
        object.__setattr__(self, "encoding", name)

    @abstractmethod
    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return the encoder of one file, which turns each batch into the bytes to append.

        The encoder raises a `JobError` that shows the record if it cannot be written.
        """

    def encode(self, text: str) -> bytes:
        """Return text as bytes; raise a `JobError` if the encoding lacks a character."""
        try:
            return text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            part = text[max(0, error.start - 20) : error.end + 20]
            raise JobError(
                f"text cannot be encoded as {self.encoding}: {error.reason}; "
                f"set encoding= or errors= of the format",
                record=reprlib.repr(part),
            ) from error


class LineFormat(FileFormat):
    """Hold one record per line. Subclasses turn a line into a record and back."""

    def parse(self, lines: list[str]) -> list[Any]:
        """Return the records of lines without their ends; a line has one record or none.

        Raises:
            ValueError: if a line is not valid. The lines are then tried one by one, so that the
                error can name the place.
        """
        return lines

    @abstractmethod
    def render(self, batch: list[Any]) -> list[str]:
        """Return records as lines without ends; the user sees any error that it raises."""

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return an encoder that calls `render`."""
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
class TextLines(LineFormat):
    r"""Hold a record per line: a str without its line end.

    Reading: lines end with `\n` only. One `\r` before it, or at the end of the file, is stripped.
    Other separators (form feeds, U+2028 …) are part of the line. Empty lines are records.
    Writing: `str(record)`. A record that contains a line end is refused.

    Arguments:
        encoding: see `FileFormat`.
        errors: see `FileFormat`.
    """

    extension = ".txt"

    def render(self, batch: list[Any]) -> list[str]:
        """Return `str` of each record."""
        return list(map(str, batch))


@dataclass(frozen=True)
class JsonLines(LineFormat):
    """Hold one JSON value per line. Blank lines are skipped, and tuples become lists.

    Arguments:
        encoding: see `FileFormat`.
        errors: see `FileFormat`.
    """

    extension = ".jsonl"

    def parse(self, lines: list[str]) -> list[Any]:
        """Decode each line that is not blank."""
        return list(map(json.loads, filter(str.strip, lines)))

    def render(self, batch: list[Any]) -> list[str]:
        """Encode each record; characters outside ASCII stay as they are."""
        return list(map(_JSON.encode, batch))


_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True)
class CsvRows(FileFormat):
    """Hold comma separated values, by the rules of Python's `csv` module.

    Quoted fields may contain line ends. All values are read as str. Blank rows are skipped.

    Arguments:
        encoding: see `FileFormat`.
        errors: see `FileFormat`.
        fields: names of the columns. None: the first row of each file (reading), or the keys of
            a file's first record (writing).
        header: whether the first row of each file holds the names.
        tuples: whether rows are read as tuples instead of dicts. Without names they always are.
        delimiter: one character between fields.
        quote: one character around fields that need it.

    Raises:
        GraphError: if an argument is not usable.
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
        """Return a function from rows to records, for the names of the columns if any."""
        if self.tuples or names is None:
            return lambda rows: list(map(tuple, rows))
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return an encoder that calls `csv.writer`, after a header if `header` is set."""
        return _CsvEncoder(self)


class _CsvEncoder:
    """Write the rows of one file: dicts by name, other iterables in their order."""

    def __init__(self, format: CsvRows) -> None:
        self._format = format
        self._fields = None if format.fields is None else list(format.fields)
        self._is_first = True

    def __call__(self, batch: list[Any]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(
            text,
            delimiter=self._format.delimiter,
            quotechar=self._format.quote,
            lineterminator="\n",
        )
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
    """Return the `repr` of the first record that cannot be rendered by itself."""
    for record in batch:
        try:
            render([record])
        except Exception:
            return reprlib.repr(record)
    return None
