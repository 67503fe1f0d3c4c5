"""Decode the messages of logical replication with the plug-in `pgoutput`, protocol version 1.

The format is in PostgreSQL's manual, "Logical Replication Message Formats". Values come as
PostgreSQL's text, and psycopg's loaders make Python values from them, the same as from a query. No
message is larger than a row, and each transaction comes as a whole when it is committed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Milliseconds from the Unix epoch to 2000-01-01, where the times of PostgreSQL begin.
_EPOCH_MS = 946_684_800_000

_BEGIN = struct.Struct(">QqI").unpack_from
_COMMIT = struct.Struct(">BQQq").unpack_from
_COUNT = struct.Struct(">H").unpack_from
_NUMBER = struct.Struct(">I").unpack_from
_TRUNCATE = struct.Struct(">IB").unpack_from


class _Unchanged:
    """Stands for a large value that an update did not change, and which is not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


#: A value of `RowChange.new` that is not sent, because the update did not change it.
UNCHANGED = _Unchanged()

#: The values of a row as they are sent: text, None for NULL, or `UNCHANGED`.
Values = list[Any]


class Begin(NamedTuple):
    """A transaction begins.

    Arguments:
        lsn: the place of its commit in the log.
        time_ms: the time of its commit, in milliseconds since the epoch.
        xid: its id, without the epoch.
    """

    lsn: int
    time_ms: int
    xid: int


class Commit(NamedTuple):
    """A transaction ends.

    Arguments:
        end_lsn: the place in the log behind its commit.
    """

    end_lsn: int


@dataclass(frozen=True)
class Relation:
    """A table as it is from here on, until another message about it.

    Arguments:
        id: the OID of the table.
        schema, name: the names of the schema and the table.
        identity: the replica identity: "d" default, "n" nothing, "f" full, "i" index.
        columns: the names of the columns.
        types: the OIDs of their types.
        keys: whether each column belongs to the replica identity.
    """

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    keys: tuple[bool, ...]
    full_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "full_name", f"{self.schema or 'pg_catalog'}.{self.name}")


class RowChange(NamedTuple):
    """A row is inserted, updated or deleted.

    Arguments:
        op: "insert", "update" or "delete".
        relation: the OID of the table.
        old: the values before the change; None if they are not sent.
        only_key: whether only the key's values of `old` are sent; the others are None.
        new: the values after the change; None for "delete".
    """

    op: str
    relation: int
    old: Values | None
    only_key: bool
    new: Values | None


class Truncate(NamedTuple):
    """Tables are truncated.

    Arguments:
        relations: the OIDs of the tables.
    """

    relations: list[int]


Message = Begin | Commit | Relation | RowChange | Truncate


def decode(data: bytes) -> Message | None:
    """Return the message in the payload of `XLogData`, or None if a reader does not need it."""
    decoder = _DECODERS.get(data[0])
    return None if decoder is None else decoder(data)


def _begin(data: bytes) -> Begin:
    lsn, microseconds, xid = _BEGIN(data, 1)
    return Begin(lsn, _EPOCH_MS + microseconds // 1000, xid)


def _commit(data: bytes) -> Commit:
    return Commit(_COMMIT(data, 1)[2])


def _relation(data: bytes) -> Relation:
    (id,) = _NUMBER(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _COUNT(data, at + 1)
    at += 3
    columns, types, keys = [], [], []
    for _ in range(count):
        keys.append(bool(data[at] & 1))
        column, at = _text(data, at + 1)
        columns.append(column)
        types.append(_NUMBER(data, at)[0])
        at += 8
    return Relation(id, schema, name, identity, tuple(columns), tuple(types), tuple(keys))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _values(data: bytes, at: int) -> tuple[Values, int]:
    """Return the values of a row whose message begins at `at`, and the end of the row."""
    (count,) = _COUNT(data, at)
    at += 2
    values: Values = []
    append = values.append
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # "t": text
            (size,) = _NUMBER(data, at + 1)
            begin = at + 5
            at = begin + size
            append(data[begin:at])
        else:
            append(None if kind == 0x6E else UNCHANGED)  # "n": NULL; "u": unchanged
            at += 1
    return values, at


def _insert(data: bytes) -> RowChange:
    return RowChange("insert", _NUMBER(data, 1)[0], None, False, _values(data, 6)[0])


def _update(data: bytes) -> RowChange:
    kind = data[5]
    if kind == 0x4E:  # "N": only the new row is sent
        return RowChange("update", _NUMBER(data, 1)[0], None, False, _values(data, 6)[0])
    old, at = _values(data, 6)
    # "K": the old values of the key; "O": all old values.
    return RowChange("update", _NUMBER(data, 1)[0], old, kind == 0x4B, _values(data, at + 1)[0])


def _delete(data: bytes) -> RowChange:
    old, _ = _values(data, 6)
    return RowChange("delete", _NUMBER(data, 1)[0], old, data[5] == 0x4B, None)


def _truncate(data: bytes) -> Truncate:
    count, _ = _TRUNCATE(data, 1)
    return Truncate([_NUMBER(data, 6 + 4 * number)[0] for number in range(count)])


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
}
