r"""Read a file, or a byte range of a file, from a position, for sources of files.

* `LineCursor` reads a plain file of lines in chunks. A chunk ends at a line end, and all its lines
  are decoded and split together. The position is a byte offset.
* `CompressedLineCursor` and `CsvCursor` cannot start in the middle of a file. Their position is a
  number of lines or rows. A resumed job reads and skips these lines or rows first. Each call of
  `read` skips only a limited number of them, so that a long skip does not delay barriers.

A cursor holds at most one chunk of a file in memory. If the format says so, bad lines are
skipped or emitted to a side output; they count in positions all the same.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from penstock.connectors.bad_messages import BadMessages, Misfit
from penstock.connectors.compressed_files import ReadableFile, damaged, damages, open_file
from penstock.connectors.file_formats import CsvRows, LineFormat
from penstock.dataflow.errors import JobError
from penstock.dataflow.source import Read

_SMALLEST_CHUNK = 1 << 12
_LARGEST_CHUNK = 1 << 20
_SKIP = 65_536


class LineCursor:
    """Reads the lines that start in a byte range of a plain file.

    Arguments:
        path: the path of the file.
        format: the format of the lines.
        start, end: the range of byte offsets, `start <= offset < end`. The cursor reads a line if
            the offset of the line's first byte is in the range.
        position: the byte offset of the next line to read. None means the first line of the range.
        bad: decides about bad lines.
    """

    def __init__(
        self,
        path: ReadableFile,
        format: LineFormat,
        start: int,
        end: int,
        position: int | None,
        bad: BadMessages,
    ) -> None:
        self._path = path
        self._format = format
        self._bad = bad
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
        try:
            records = self._format.parse(_decode_lines(data, self._position, self._format))
        except ValueError:
            records = _good_records(self._path, data, self._position, self._format, self, self._bad)
        self._position += len(data)
        finished = self._position >= self._end
        return Read(records, self._position, finished, 0.0, self._bad.take_side_output())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next_lines(self, max_records: int) -> bytes:
        """Return the bytes of the next lines: at least one line, and at most `max_records`."""
        wanted = int(self._line_bytes * max_records)
        size = min(max(wanted, _SMALLEST_CHUNK), _LARGEST_CHUNK, self._end - self._position)
        data: bytes = self._file.read(size)
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

    def place(self, index: int, offset: int) -> str:
        """Return the place of a line in the file."""
        del index
        return f"byte {self._position + offset}"


class CompressedLineCursor:
    """Reads the lines of a compressed file.

    Arguments:
        path: the path of the file.
        format: the format of the lines.
        position: the number of lines to skip, or None to read from the first line.
        bad: decides about bad lines.
    """

    def __init__(
        self, path: ReadableFile, format: LineFormat, position: int | None, bad: BadMessages
    ) -> None:
        self._path = path
        self._format = format
        self._bad = bad
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
        try:
            records = self._format.parse(_decode_lines(data, self._position, self._format))
        except ValueError:
            records = _good_records(self._path, data, self._position, self._format, self, self._bad)
        self._position += len(raw)
        self._skipped = self._position
        finished = len(raw) < max_records
        return Read(records, self._position, finished, 0.0, self._bad.take_side_output())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def place(self, index: int, offset: int) -> str:
        """Return the place of a line in the file."""
        del offset
        return f"line {self._position + index + 1}"


class CsvCursor:
    """Reads the rows of a CSV file, which may be compressed.

    Arguments:
        path: the path of the file.
        format: the format of the rows.
        position: the number of rows to skip after the header, or None to read from the first row.
        bad: decides about bad rows.
    """

    def __init__(
        self, path: ReadableFile, format: CsvRows, position: int | None, bad: BadMessages
    ) -> None:
        self._path = path
        self._format = format
        self._bad = bad
        self._position = position or 0
        self._skipped = 0
        encoding = "utf-8-sig" if format.encoding == "utf-8" else format.encoding
        # A decoder cannot continue behind an error. So bytes that cannot be decoded become lone
        # surrogates, and rows with such characters are bad.
        self._escapes = bad.goes_on and format.errors == "strict"
        errors = "surrogateescape" if self._escapes else format.errors
        self._file = io.TextIOWrapper(open_file(path), encoding=encoding, errors=errors, newline="")
        #: The text of the row that is parsed, line by line. It is kept only for bad rows.
        self._lines: list[str] = []
        lines = self._kept_lines() if bad.needs_bytes else self._file
        reader = csv.reader(lines, delimiter=format.delimiter, quotechar=format.quote)
        self._rows: Iterator[Any] = reader
        if bad.goes_on:
            self._rows = self._rows_and_misfits(reader)
        self._reader = reader
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
            place, reason = self._invalid(error)
            raise JobError(f"{place}: {reason}") from error
        records = self._records(rows)
        self._position += len(rows)
        self._skipped = self._position
        finished = len(rows) < max_records
        return Read(records, self._position, finished, 0.0, self._bad.take_side_output())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _kept_lines(self) -> Iterator[str]:
        """Yield the lines of the file, and keep those of the current row."""
        for line in self._file:
            self._lines.append(line)
            yield line

    def _rows_and_misfits(self, reader: Iterator[list[str]]) -> Iterator[Any]:
        """Yield the rows, and a misfit in the place of each row that is not valid CSV.

        If the bytes of bad rows are needed, each row is a `_KeptRow`.
        """
        keeps = self._bad.needs_bytes
        while True:
            self._lines.clear()
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                place, reason = self._invalid(error)
                yield Misfit(place, reason, self._bytes_of("".join(self._lines)), None)
                continue
            if keeps:
                row = _KeptRow(row)
                row.text = "".join(self._lines)
            yield row

    def _bytes_of(self, text: str) -> bytes:
        """Return the bytes of a row in the file, without its line end."""
        return text.rstrip("\r\n").encode(self._format.encoding, "surrogateescape")

    def _invalid(self, error: csv.Error) -> tuple[str, str]:
        """Return the place and the reason of an error."""
        return (
            f"{self._path}, line {self._reader.line_num}",
            f"not valid CSV: {error}. (Fields longer than 128 KiB need a higher "
            f"csv.field_size_limit.)",
        )

    def _begin(self) -> None:
        """Read the header if the format has one, and determine the names of the columns.

        Raises:
            JobError: if the header differs from the format's `fields`, or names a column twice.
        """
        names = None if self._format.fields is None else list(self._format.fields)
        if self._format.header:
            first = next(filter(None, self._rows), None)
            if isinstance(first, Misfit):
                raise JobError(f"{first.place}: {first.reason}")
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

    def _records(self, rows: list[Any]) -> list[Any]:
        assert self._parse is not None
        full: list[Any] = [row for row in rows if row]
        width = self._width
        if self._bad.goes_on or (width is not None and not {width}.issuperset(map(len, full))):
            full = [row for index, row in enumerate(rows) if row and self._is_good(index, row)]
        return self._parse(full)

    def _is_good(self, index: int, row: list[str] | Misfit) -> bool:
        """Return whether a row is valid; handle it as a bad one if it is not."""
        if isinstance(row, Misfit):
            self._bad.add(row)
            return False
        if self._width is not None and len(row) != self._width:
            reason = f"it has {len(row)} fields instead of {self._width}"
        elif self._escapes and _has_escapes(row):
            reason = f"it cannot be decoded as {self._format.encoding}"
        else:
            return True
        place = f"{self._path}, row {self._position + index + 1} after the header"
        message = self._bytes_of(row.text) if isinstance(row, _KeptRow) else b""
        self._bad.add(Misfit(place, reason, message, repr(list(row))[:200]))
        return False


class _KeptRow(list[str]):
    """A row with its text in the file."""

    text: str


def _has_escapes(row: list[str]) -> bool:
    """Return whether a row has characters that stand for bytes that could not be decoded."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return True
    return False


def _decode_lines(data: bytes, position: int, format: LineFormat) -> list[str]:
    r"""Return the lines in `data` as texts without line ends.

    `str.splitlines` is not used, because it also splits at other characters, such as `\x0b` and
    U+2028.

    Arguments:
        data: the bytes of whole lines. The last line of a file may lack its line end.
        position: 0 at the beginning of a file, where a byte order mark is skipped.
        format: the format of the lines.

    Raises:
        UnicodeDecodeError: if `data` cannot be decoded.
    """
    if position == 0 and format.encoding == "utf-8":
        data = data.removeprefix(codecs.BOM_UTF8)
    if not data:
        return []
    text = data.decode(format.encoding, format.errors)
    # Add the line end that the last line of a file may lack. Then a "\r" at the end of the file is
    # part of a line end, too, and is removed below.
    if not data.endswith(b"\n"):
        text += "\n"
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    return text[:-1].split("\n")


def _good_records(
    path: ReadableFile,
    data: bytes,
    position: int,
    format: LineFormat,
    cursor: LineCursor | CompressedLineCursor,
    bad: BadMessages,
) -> list[Any]:
    """Return the records of the valid lines in `data`, which has at least one bad line.

    Raises:
        JobError: if bad lines are not skipped.
    """
    records: list[Any] = []
    found, offset = False, 0
    for index, line in enumerate(_lines_of(data)):
        misfit: Misfit | None = None
        text: list[str] = []
        try:
            text = _decode_lines(line, position + offset, format)
            records += format.parse(text)
        except UnicodeDecodeError as undecodable:
            place = cursor.place(index, offset + undecodable.start)
            misfit = Misfit(f"{path}, {place}", _why_undecodable(undecodable), b"", None)
        except ValueError as invalid:
            reason = f"a line is not valid {format.name}: {invalid}"
            place = cursor.place(index, offset)
            misfit = Misfit(f"{path}, {place}", reason, b"", text[0][:200])
        if misfit is not None:
            found = True
            bad.add(misfit._replace(message=line.rstrip(b"\r\n")))
        offset += len(line)
    if not found:
        raise JobError(
            f"{path}, {cursor.place(0, 0)}: {type(format).__name__}.parse refuses these lines "
            f"together, though it accepts each of them: it must convert each line by itself"
        )
    return records


def _skip(path: ReadableFile, lines: Iterable[Any], skipped: int, position: int) -> int:
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


def _undecodable(path: ReadableFile, place: str, error: UnicodeDecodeError) -> JobError:
    return JobError(f"{path}, {place}: {_why_undecodable(error)}")


def _why_undecodable(error: UnicodeDecodeError) -> str:
    return (
        f"cannot be decoded as {error.encoding}: {error.reason}; set encoding= or "
        f"errors='replace' of the format"
    )


def _lines_of(data: bytes) -> list[bytes]:
    """Return the lines in `data`, with their line ends."""
    return io.BytesIO(data).readlines()
