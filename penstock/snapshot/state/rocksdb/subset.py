"""Make a MANIFEST of RocksDB that names only some of the table files of a snapshot.

Two snapshots share most of their table files. A database of the other files has all keys whose
entries may differ. It is opened only to list these keys: which value of a key counts is decided by
all files together.

The descriptions of the files are copied as they are. `manifest_reader.py` describes the format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from penstock.snapshot.state.rocksdb.manifest_reader import (
    ManifestFields,
    UnknownManifestError,
    masked_crc,
    records,
)

_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: The tags of fields that describe the database, of which the last value counts: the comparator,
#: the numbers of the log, of the next file and of the previous log, the last sequence number, and
#: the highest number of a column family.
_DATABASE_TAGS = (1, 2, 9, 3, 4, 203)
_NEW_FILE = 103


def subset_manifest(data: bytes, numbers: Collection[int]) -> bytes:
    """Return a MANIFEST that names only the table files with some numbers.

    Arguments:
        data: the content of the MANIFEST of a snapshot.
        numbers: the numbers of the files.

    Raises:
        UnknownManifestError: if the MANIFEST is damaged, or has a field that is not known.
    """
    database: dict[int, bytes] = {}
    files: dict[int, bytes] = {}
    try:
        for _, edit in records(data, 0):
            fields = ManifestFields(edit)
            while (field := fields.next_field()) is not None:
                if field.tag == _NEW_FILE:
                    # An edit that moves a file to another level describes it again.
                    files[field.file] = field.data
                elif field.tag in _DATABASE_TAGS:
                    database[field.tag] = field.data
    except (ValueError, IndexError, struct.error) as error:
        raise UnknownManifestError(f"cannot understand a MANIFEST of RocksDB: {error}") from error
    parts = [database[tag] for tag in _DATABASE_TAGS if tag in database]
    parts += [files[number] for number in sorted(numbers)]
    return _log_of(b"".join(parts))


def _log_of(record: bytes) -> bytes:
    """Return a log with one record, which is cut at the ends of blocks."""
    log, at = bytearray(), 0
    while at < len(record) or not log:
        room = _BLOCK_BYTES - len(log) % _BLOCK_BYTES
        if room <= _HEADER.size:
            log += bytes(room)
            continue
        part = record[at : at + room - _HEADER.size]
        first, last = at == 0, at + len(part) == len(record)
        kind = _FULL if first and last else _FIRST if first else _LAST if last else _MIDDLE
        log += _HEADER.pack(masked_crc(bytes((kind,)) + part), len(part), kind) + part
        at += len(part)
    return bytes(log)
