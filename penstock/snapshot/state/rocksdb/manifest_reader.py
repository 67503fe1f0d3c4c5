"""Reads the list of table files of an open RocksDB database from its MANIFEST.

The MANIFEST is a log of *version edits*. Each edit adds or removes table files. The file `CURRENT`
contains the name of the MANIFEST in use. RocksDB only appends to the MANIFEST. When it becomes too
large, RocksDB writes a new MANIFEST with the current list of files, and updates `CURRENT`.

RocksDB also has a function that returns the list of files. It cannot be used here: RocksDB writes
an edit to the MANIFEST before it applies the edit. So it is not known to which length of the
MANIFEST the returned list belongs. A checkpoint needs a prefix of the MANIFEST and exactly the
files that this prefix names.

The reader supports only the format that RocksDB writes for a database with one column family and no
blob files. It refuses all other formats with an error. Sources: `db/log_format.h` and
`db/version_edit.h` of RocksDB 9.8, and the pages "MANIFEST" and "Write Ahead Log File Format" of
its wiki.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.dataflow.errors import StoreError

# The format of the log on disk: the size of its blocks, and the header and types of its fragments.
_BLOCK_BYTES = 32 * 1024
# The fields of a header are the masked CRC-32C of type and payload, the length, and the type.
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # The Castagnoli polynomial of CRC-32C, with its bits reversed.

# The format of an edit on disk: the tags of the fields that are read, and the parts of each field
# that is skipped.
_DELETED_FILE, _NEW_FILE = 6, 103
_NUMBER, _BYTES = "number", "bytes"
_SKIPPED_FIELDS: dict[int, tuple[str, ...]] = {
    1: (_BYTES,),  # the name of the comparator
    2: (_NUMBER,),  # the number of the log
    3: (_NUMBER,),  # the number of the next file
    4: (_NUMBER,),  # the last sequence number
    5: (_NUMBER, _BYTES),  # the level and the key of a compaction cursor
    9: (_NUMBER,),  # the number of the previous log
    10: (_NUMBER,),  # the lowest number of a log to keep
    203: (_NUMBER,),  # the highest number of a column family
}
# A field whose tag has this bit can be skipped. It consists of a length and that number of bytes.
_IGNORABLE = 1 << 13
# Four tags have the bit `_IGNORABLE`, but another format. They belong to blob files and write-ahead
# logs, which are not used.
_IRREGULAR = range(_IGNORABLE + 2, _IGNORABLE + 6)
# The tags of the fields within the description of a new file.
_END_OF_FILE, _OLDEST_BLOB, _ESSENTIAL = 1, 4, 1 << 6

_READ_BYTES = 64 * 1024


class UnknownManifestError(StoreError):
    """A MANIFEST is damaged, or has a field that the reader does not know.

    No data is lost: RocksDB can still make the checkpoint itself.
    """


@dataclass(frozen=True)
class Version:
    """The table files of a database after one edit of its MANIFEST.

    Arguments:
        name: the name of the MANIFEST.
        data: the content of the MANIFEST up to the end of this edit.
        files: the size of each table file in bytes, keyed by the number of the file.
    """

    name: str
    data: bytes
    files: dict[int, int]


class ManifestReader:
    """Reads the edits that RocksDB appends to the MANIFEST of one open database.

    Each edit is decoded only once.

    Arguments:
        folder: the folder of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._end = 0
        self._files: dict[int, int] = {}

    def read(self) -> Version:
        """Read the new edits, and return the newest version.

        This version contains all table files that were flushed before this call and are still in
        use.

        Raises:
            UnknownManifestError: if the MANIFEST cannot be decoded. Do not use this reader again.
            OSError: if CURRENT or the MANIFEST cannot be read.
        """
        while True:
            name = os.fsdecode(read_file(self._folder / "CURRENT")).strip()
            try:
                data = read_file(self._folder / name, self._end)
                break
            except FileNotFoundError:
                # If CURRENT has another name now, RocksDB has replaced the MANIFEST, so try again.
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
    """Read a whole file with as few system calls as possible.

    Each system call releases the interpreter lock, and has to wait for it again under load.

    Arguments:
        path: the path of the file.
        expected: an estimate of the size of the file, in bytes.
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
    """Yield the complete records of a log, each as its end position and its bytes.

    If the last record is incomplete, it is left out, since RocksDB is still writing it.

    Arguments:
        data: the content of the log from its beginning.
        start: the position in bytes at which to begin. It must be 0 or the end of a record.

    Raises:
        ValueError: if the log is damaged, or has another format.
    """
    position, parts = start, list[bytes]()
    while True:
        room = _BLOCK_BYTES - position % _BLOCK_BYTES
        if room < _HEADER.size:
            # The rest of a block is filled with zeros if it is too short for a header.
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
    """Apply an edit to the table files in `files`.

    Raises:
        ValueError: if the edit has an unknown field, or removes a file that is not in `files`.
    """
    fields = ManifestFields(edit)
    removed, added = [], {}
    while (field := fields.next_field()) is not None:
        if field.tag == _DELETED_FILE:
            removed.append(field.file)
        elif field.tag == _NEW_FILE:
            added[field.file] = field.size
    # Files are removed first, since an edit that moves a file to another level both removes and
    # adds it.
    for number in removed:
        if files.pop(number, None) is None:
            raise ValueError(f"an edit removes file {number}, which is not there")
    files.update(added)


class ManifestField(NamedTuple):
    """A field of an edit.

    Arguments:
        tag: the tag of the field.
        data: the bytes of the field, with its tag.
        file: the number of the table file that the field adds or removes; otherwise 0.
        size: the size in bytes of the table file that the field adds; otherwise 0.
    """

    tag: int
    data: bytes
    file: int = 0
    size: int = 0


class ManifestFields:
    """Decodes the fields of one edit, one after the other.

    Arguments:
        data: the bytes of the edit.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def next_field(self) -> ManifestField | None:
        """Return the next field, or None behind the last one.

        Raises:
            ValueError: if the field is not known.
        """
        start = self._position
        if start > len(self._data):
            raise ValueError("an edit ends within a field")
        if start == len(self._data):
            return None
        tag, file, size = self._number(), 0, 0
        if tag == _DELETED_FILE:
            self._number()  # Skip the level of the file.
            file = self._number()
        elif tag == _NEW_FILE:
            file, size = self._new_file()
        elif tag in _SKIPPED_FIELDS:
            for part in _SKIPPED_FIELDS[tag]:
                self._skip(part)
        elif tag & _IGNORABLE and tag not in _IRREGULAR:
            self._skip(_BYTES)
        else:
            raise ValueError(f"an edit has a field {tag}")
        return ManifestField(tag, self._data[start : self._position], file, size)

    def _number(self) -> int:
        """Read a varint: each byte contains seven bits of the number, the lowest bits first."""
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _skip(self, part: str) -> None:
        number = self._number()
        if part == _BYTES:
            self._position += number

    def _new_file(self) -> tuple[int, int]:
        """Read the description of a new file, and return the file's number and size in bytes."""
        self._number()  # Skip the level of the file.
        number, size = self._number(), self._number()
        for part in (_BYTES, _BYTES, _NUMBER, _NUMBER):  # Skip the ranges of keys and numbers.
            self._skip(part)
        while (tag := self._number()) != _END_OF_FILE:
            if tag & _ESSENTIAL or tag == _OLDEST_BLOB:
                raise ValueError(f"file {number} has a field {tag}")
            self._skip(_BYTES)
        return number, size


def _crc_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return tuple(table)


_CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C (RFC 3720) of `data`, masked as in the files of RocksDB.

    Python's standard library has no CRC-32C. This function takes about 50 ns for each byte, and a
    snapshot adds only one or two thousand bytes to the MANIFEST.
    """
    table, crc = _CRC_TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    # RocksDB masks the CRC, since the CRC of data that itself contains CRCs detects fewer errors.
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
