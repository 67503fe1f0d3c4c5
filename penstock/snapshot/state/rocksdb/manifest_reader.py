"""Reads the list of table files of an open RocksDB database from its MANIFEST.

The MANIFEST is a log of *version edits*: each adds and removes table files. `CURRENT` names the
MANIFEST in use. RocksDB only appends to it. When it is too large, RocksDB writes a new one that
begins with the present state, and points `CURRENT` to that.

Why RocksDB is not asked for the list: an edit is in the MANIFEST before RocksDB acts on it, so its
list belongs to no known length of the MANIFEST. Only the MANIFEST itself defines the files of
each of its prefixes.

The formats here are those that RocksDB writes for a database with one column family and no blob
files. Everything else is refused, so that nothing is ever guessed. Sources: RocksDB's
`db/log_format.h` and `db/version_edit.h`, and its wiki pages "MANIFEST" and "Write Ahead Log File
Format". As of RocksDB 9.8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.errors import StoreError

__all__ = [
    "ManifestReader",
    "UnknownManifestError",
    "Version",
    "masked_crc",
    "read_file",
    "records",
]

# The format on disk: the log's blocks and the types of fragments in it.
_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")  # masked CRC-32C of type and payload, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed

# The format on disk: fields of an edit that are read, and the parts of those that are skipped.
_DELETED_FILE, _NEW_FILE = 6, 103
_NUMBER, _BYTES = "number", "bytes"
_SKIPPED_FIELDS: dict[int, tuple[str, ...]] = {
    1: (_BYTES,),  # comparator
    2: (_NUMBER,),  # log number
    3: (_NUMBER,),  # next file number
    4: (_NUMBER,),  # last sequence
    5: (_NUMBER, _BYTES),  # level and key of a compaction cursor
    9: (_NUMBER,),  # previous log number
    10: (_NUMBER,),  # least log number to keep
    203: (_NUMBER,),  # highest column family
}
# Fields with this bit may be skipped: they are bytes with their length before them.
_IGNORABLE = 1 << 13
# … but these four are older than that rule: blob files and write-ahead logs, which are not used.
_IRREGULAR = range(_IGNORABLE + 2, _IGNORABLE + 6)
# Fields within a new file.
_END_OF_FILE, _OLDEST_BLOB, _ESSENTIAL = 1, 4, 1 << 6

_READ_BYTES = 64 * 1024


class UnknownManifestError(StoreError):
    """A MANIFEST is damaged, or has a field that is not known here.

    Nothing is lost: RocksDB can make the checkpoint itself.
    """


@dataclass(frozen=True)
class Version:
    """The table files of a database after one of its edits.

    Arguments:
        name: of its MANIFEST.
        data: the MANIFEST up to the last complete edit.
        files: per number of a table file its size in bytes.
    """

    name: str
    data: bytes
    files: dict[int, int]


class ManifestReader:
    """Follows the MANIFEST of one open database; reads each edit once.

    Arguments:
        folder: of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._end = 0
        self._files: dict[int, int] = {}

    def read(self) -> Version:
        """Return the newest version; everything that was flushed before the call is in it.

        Raises:
            UnknownManifestError: if it cannot be understood; make a new reader then.
            OSError: if a file cannot be read.
        """
        while True:
            name = os.fsdecode(read_file(self._folder / "CURRENT")).strip()
            try:
                data = read_file(self._folder / name, self._end)
                break
            except FileNotFoundError:
                # It was replaced meanwhile if CURRENT names another one now.
                if read_file(self._folder / "CURRENT").strip() == os.fsencode(name):
                    raise
        if name != self._name:
            self._name, self._end, self._files = name, 0, {}
        try:
            if len(data) < self._end:
                raise ValueError(f"there are only {len(data)} bytes of it now")
            for end, edit in records(data, self._end):
                _apply(edit, self._files)
                self._end = end
        except (ValueError, IndexError, struct.error) as error:
            message = f"cannot understand a MANIFEST of RocksDB after byte {self._end}: {error}"
            raise UnknownManifestError(message, self._folder / name) from error
        return Version(name, data[: self._end], dict(self._files))


def read_file(path: Path, expected: int = 0) -> bytes:
    """Read a whole file in as few calls as possible.

    Each call releases the interpreter lock, and waits for it under load.

    Arguments:
        path: of the file.
        expected: a guess of its size in bytes.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        wanted = expected + _READ_BYTES
        while True:
            parts.append(os.read(descriptor, wanted))
            if len(parts[-1]) < wanted:
                return b"".join(parts)
    finally:
        os.close(descriptor)


def records(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the complete records of a log, each with its end.

    An incomplete record at the end is left out: it is being written.

    Arguments:
        data: the log from its beginning.
        start: where to begin, in bytes; the end of a record.

    Raises:
        ValueError: if the log is damaged, or is something else.
    """
    position, parts = start, list[bytes]()
    while True:
        room = _BLOCK_BYTES - position % _BLOCK_BYTES
        if room < _HEADER.size:
            # Too little for a header: filled with zeros.
            position += room
            continue
        begin = position + _HEADER.size
        if begin > len(data):
            return
        masked, length, kind = _HEADER.unpack_from(data, position)
        position = begin + length
        if position > len(data):
            return
        if masked != masked_crc(data[begin - 1 : position]):
            raise ValueError(f"the checksum of the record at {begin} is wrong")
        if kind not in ((_MIDDLE, _LAST) if parts else (_FULL, _FIRST)):
            raise ValueError(f"a record of type {kind} at {begin}")
        parts.append(data[begin:position])
        if kind in (_FULL, _LAST):
            yield position, b"".join(parts)
            parts = []


def _apply(edit: bytes, files: dict[int, int]) -> None:
    """Add and remove the table files of an edit; `ValueError` if it has unknown fields."""
    fields = _Fields(edit)
    removed, added = [], {}
    while fields.left():
        tag = fields.number()
        if tag == _DELETED_FILE:
            fields.number()  # level
            removed.append(fields.number())
        elif tag == _NEW_FILE:
            number, size = fields.new_file()
            added[number] = size
        elif tag in _SKIPPED_FIELDS:
            for part in _SKIPPED_FIELDS[tag]:
                fields.skip(part)
        elif tag & _IGNORABLE and tag not in _IRREGULAR:
            fields.skip(_BYTES)
        else:
            raise ValueError(f"an edit has a field {tag}")
    # In this order: a file that moves to another level is removed and added.
    for number in removed:
        if files.pop(number, None) is None:
            raise ValueError(f"an edit removes file {number}, which is not there")
    files.update(added)


class _Fields:
    """Reads the fields of an edit, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def left(self) -> bool:
        if self._position > len(self._data):
            raise ValueError("an edit ends within a field")
        return self._position < len(self._data)

    def number(self) -> int:
        """Read a varint: seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def skip(self, part: str) -> None:
        number = self.number()
        if part == _BYTES:
            self._position += number

    def new_file(self) -> tuple[int, int]:
        """Read a new file; return its number and its size in bytes."""
        self.number()  # level
        number, size = self.number(), self.number()
        for part in (_BYTES, _BYTES, _NUMBER, _NUMBER):  # keys and sequence numbers, from and to
            self.skip(part)
        while (tag := self.number()) != _END_OF_FILE:
            if tag & _ESSENTIAL or tag == _OLDEST_BLOB:
                raise ValueError(f"file {number} has a field {tag}")
            self.skip(_BYTES)
        return number, size


def _crc_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return tuple(table)


_CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C (RFC 3720) of bytes, masked as RocksDB stores it.

    Takes about 50 ns a byte, and a snapshot adds one or two thousand bytes. Python has no CRC-32C.
    """
    table, crc = _CRC_TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    # Masked, since the CRC of data that contains CRCs detects less.
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
