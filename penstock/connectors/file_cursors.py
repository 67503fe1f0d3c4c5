r"""Read a file, or a byte range of a file, from a position, for `FileSource`.

* `LineCursor` reads a plain file of lines in chunks. A chunk ends at a line end, and all its lines
  are decoded and split together. The position is a byte offset.
* `CompressedLineCursor` and `CsvCursor` cannot start in the middle of a file. Their position is a
  number of lines or rows. A resumed job reads and skips these lines or rows first. Each call of
  `read` skips only a limited number of them, so that a long skip does not delay barriers.

A cursor holds at most one chunk of a file in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from penstock.connectors.compressed_files import damaged, damages, open_file
from penstock.connectors.file_formats import CsvRows, LineFormat
from penstock.dataflow.errors import JobError
from penstock.dataflow.source import Read

__all__ = ["CompressedLineCursor", "CsvCursor", "Cursor", "LineCursor"]

_SMALLEST_CHUNK = 1 << 12
_LARGEST_CHUNK = 1 << 20
_SKIP = 65_536


class Cursor(Protocol):
    """The interface of the classes that read one file from a position."""

    def read(self, max_records: int) -> Read:
        """Return at most `max_records` records, and the position after them."""

    def close(self) -> None:
        """Close the file."""


class LineCursor:
    """Reads the lines that start in a byte range of a plain file.

    Arguments:
        path: the path of the file.
        format: the format of the lines.
        start, end: the range of byte offsets, `start <= offset < end`. The cursor reads a line if
            the offset of the line's first byte is in the range.
        position: the byte offset of the next line to read. None means the first line of the range.
    """

    def __init__(
        self, path: Path, format: LineFormat, start: int, end: int, position: int | None
    ) -> None:
        self._path = path
        self._format = format
        self._end = end
        self._line_bytes = 64.0
        self._file = path.open("rb")
        if position is None:
            position = start
            if start > 0:
                # Skip the rest of the line that contains the byte before `start`. If that byte is a
                # line end, the first line of the range starts exactly at `start`.
                self._file.seek(start - 1)
                position = start - 1 + len(self._file.readline())
        self._file.seek(position)
        self._position = position

    def read(self, max_records: int) -> Read:
        """Return the records of the next lines, and the byte offset after these lines."""
        if self._position >= self._end:
            return Read([], self._position, finished=True)
        data = self._next_lines(max_records)
        lines = _decode_lines(data, self._position, self._format, self._bad_bytes)
        try:
            records = self._format.parse(lines)
        except ValueError:
            index = _first_bad(self._format, lines)
            before = sum(len(line) + 1 for line in data.split(b"\n")[:index])
            place = f"byte {self._position + before}"
            raise _bad_line(self._path, place, self._format, lines[index]) from None
        self._position += len(data)
        return Read(records, self._position, finished=self._position >= self._end)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next_lines(self, max_records: int) -> bytes:
        """Return the bytes of the next lines: at least one line, and at most `max_records`."""
        wanted = int(self._line_bytes * max_records)
        size = min(max(wanted, _SMALLEST_CHUNK), _LARGEST_CHUNK, self._end - self._position)
        data = self._file.read(size)
        if len(data) < size:
            raise JobError(
                f"{self._path} ends at byte {self._position + len(data)}, but had {self._end} "
                f"when the job listed it: it must not change while it is read"
            )
        if not data.endswith(b"\n"):
            data += self._file.readline()
        count = data.count(b"\n") + (not data.endswith(b"\n"))
        if count > max_records:
            rest = data.split(b"\n", max_records)[-1]
            data = data[: len(data) - len(rest)]
            self._file.seek(self._position + len(data))
            count = max_records
        # The next chunk is sized by a little less than the average length of a line. So it rarely
        # contains more than `max_records` lines, which would have to be read again.
        self._line_bytes = 0.9 * len(data) / count
        return data

    def _bad_bytes(self, error: UnicodeDecodeError) -> JobError:
        return _undecodable(self._path, f"byte {self._position + error.start}", error)


class CompressedLineCursor:
    """Reads the lines of a compressed file.

    Arguments:
        path: the path of the file.
        format: the format of the lines.
        position: the number of lines to skip, or None to read from the first line.
    """

    def __init__(self, path: Path, format: LineFormat, position: int | None) -> None:
        self._path = path
        self._format = format
        self._position = position or 0
        self._skipped = 0
        self._file = open_file(path)

    def read(self, max_records: int) -> Read:
        """Return the next records, or an empty list while lines are being skipped."""
        try:
            if self._skipped < self._position:
                self._skipped += _skip(self._path, self._file, self._skipped, self._position)
                return Read([], self._position)
            raw = list(islice(self._file, max_records))
        except damages() as error:
            raise damaged(self._path, error) from error
        data = b"".join(raw)
        lines = _decode_lines(data, self._position, self._format, self._bad_bytes)
        try:
            records = self._format.parse(lines)
        except ValueError:
            index = _first_bad(self._format, lines)
            place = f"line {self._position + index + 1}"
            raise _bad_line(self._path, place, self._format, lines[index]) from None
        self._position += len(raw)
        self._skipped = self._position
        return Read(records, self._position, finished=len(raw) < max_records)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _bad_bytes(self, error: UnicodeDecodeError) -> JobError:
        line = self._position + error.object[: error.start].count(b"\n") + 1
        return _undecodable(self._path, f"line {line}", error)


class CsvCursor:
    """Reads the rows of a CSV file, which may be compressed.

    Arguments:
        path: the path of the file.
        format: the format of the rows.
        position: the number of rows to skip after the header, or None to read from the first row.
    """

    def __init__(self, path: Path, format: CsvRows, position: int | None) -> None:
        self._path = path
        self._format = format
        self._position = position or 0
        self._skipped = 0
        encoding = "utf-8-sig" if format.encoding == "utf-8" else format.encoding
        self._file = io.TextIOWrapper(
            open_file(path), encoding=encoding, errors=format.errors, newline=""
        )
        self._rows = csv.reader(self._file, delimiter=format.delimiter, quotechar=format.quote)
        self._parse: Callable[[list[list[str]]], list[Any]] | None = None
        self._width: int | None = None

    def read(self, max_records: int) -> Read:
        """Return the next records, or an empty list while rows are being skipped."""
        try:
            if self._parse is None:
                self._begin()
            if self._skipped < self._position:
                self._skipped += _skip(self._path, self._rows, self._skipped, self._position)
                return Read([], self._position)
            rows = list(islice(self._rows, max_records))
        except damages() as error:
            raise damaged(self._path, error) from error
        except UnicodeDecodeError as error:
            place = f"a row soon after row {self._position}"
            raise _undecodable(self._path, place, error) from error
        except csv.Error as error:
            raise JobError(
                f"{self._path}, line {self._rows.line_num}: not valid CSV: {error}. (Fields "
                f"longer than 128 KiB need a higher csv.field_size_limit.)"
            ) from error
        records = self._records(rows)
        self._position += len(rows)
        self._skipped = self._position
        return Read(records, self._position, finished=len(rows) < max_records)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin(self) -> None:
        """Read the header if the format has one, and determine the names of the columns.

        Raises:
            JobError: if the header differs from the format's `fields`, or names a column twice.
        """
        names = None if self._format.fields is None else list(self._format.fields)
        if self._format.header:
            first = next(filter(None, self._rows), None)
            if names is not None and first is not None and first != names:
                raise JobError(f"{self._path}: its header is {first}, but fields= is {names}")
            names = first if names is None else names
            if names is not None and len(set(names)) < len(names) and not self._format.tuples:
                raise JobError(
                    f"{self._path}: its header names a column twice: {names}; read it with "
                    f"tuples=True, or with header=False and fields="
                )
        self._width = None if names is None else len(names)
        self._parse = self._format.parser(names)

    def _records(self, rows: list[list[str]]) -> list[Any]:
        assert self._parse is not None
        full = list(filter(None, rows))
        if self._width is not None and not {self._width}.issuperset(map(len, full)):
            index, row = next(
                (index, row) for index, row in enumerate(rows) if row and len(row) != self._width
            )
            raise JobError(
                f"{self._path}: row {self._position + index + 1} after the header has "
                f"{len(row)} fields instead of {self._width}",
                record=str(row)[:200],
            )
        return self._parse(full)


def _decode_lines(
    data: bytes,
    position: int,
    format: LineFormat,
    bad_bytes: Callable[[UnicodeDecodeError], JobError],
) -> list[str]:
    r"""Return the lines in `data` as texts without line ends.

    `str.splitlines` is not used, because it also splits at other characters, such as `\x0b` and
    U+2028.

    Arguments:
        data: the bytes of whole lines. The last line of a file may lack its line end.
        position: 0 at the beginning of a file, where a byte order mark is skipped.
        format: the format of the lines.
        bad_bytes: a function that returns the error to raise if `data` cannot be decoded.
    """
    if position == 0 and format.encoding == "utf-8":
        data = data.removeprefix(codecs.BOM_UTF8)
    if not data:
        return []
    try:
        text = data.decode(format.encoding, format.errors)
    except UnicodeDecodeError as error:
        raise bad_bytes(error) from error
    # Add the line end that the last line of a file may lack. Then a "\r" at the end of the file is
    # part of a line end, too, and is removed below.
    if not data.endswith(b"\n"):
        text += "\n"
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    return text[:-1].split("\n")


def _skip(path: Path, lines: Iterable[Any], skipped: int, position: int) -> int:
    """Skip the next lines or rows of a file, and return how many were skipped.

    One call skips at most `_SKIP` lines, so that it does not delay barriers.

    Arguments:
        path: the path of the file, for the error message.
        lines: an iterator of the lines or rows.
        skipped: the number of lines that earlier calls skipped.
        position: the total number of lines to skip.

    Raises:
        JobError: if the file has fewer than `position` lines or rows.
    """
    count = min(_SKIP, position - skipped)
    if next(islice(lines, count - 1, None), None) is None:
        raise JobError(
            f"{path} has fewer lines or rows than the {position} that were read before the "
            f"snapshot: it was changed; restore it, or start the job without --resume"
        )
    return count


def _undecodable(path: Path, place: str, error: UnicodeDecodeError) -> JobError:
    return JobError(
        f"{path}, {place}: cannot be decoded as {error.encoding}: {error.reason}; set encoding= "
        f"or errors='replace' of the format"
    )


def _bad_line(path: Path, place: str, format: LineFormat, line: str) -> JobError:
    reason = ""
    try:
        format.parse([line])
    except ValueError as error:
        reason = f": {error}"
    name = type(format).__name__
    return JobError(f"{path}, {place}: a line is not valid {name}{reason}", record=line[:200])


def _first_bad(format: LineFormat, lines: list[str]) -> int:
    """Return the index of the first line that cannot be parsed, or 0 if each line can be."""
    for index, line in enumerate(lines):
        try:
            format.parse([line])
        except ValueError:
            return index
    return 0
