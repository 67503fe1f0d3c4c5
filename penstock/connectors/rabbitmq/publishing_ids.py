"""Number the messages of a sink, so that a stream refuses those that it has already.

A stream of RabbitMQ remembers the highest *publishing id* of each named publisher, and leaves out
messages whose id is not higher. So the sink makes the id of a message from its snapshot and record:

    number of the snapshot | index of the record | hash of the snapshot's output | last record?
           30 bits         |       26 bits       |             6 bits            |    1 bit

The ids of a sink ascend, and have gaps, which RabbitMQ allows. When a snapshot is published again,
each record has the same id. The highest id of the stream is the marker of the staged protocol: it
names the last record that the stream has, and the snapshot of this record.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_NUMBER_BITS, _INDEX_BITS, _HASH_BITS = 30, 26, 6
_MAX_NUMBER, _MAX_INDEX = (1 << _NUMBER_BITS) - 1, (1 << _INDEX_BITS) - 1


class TooManyError(Exception):
    """Raised when a number does not fit into a publishing id."""


@dataclass(frozen=True)
class PublishingId:
    """Identifies a record of the output of a snapshot.

    Arguments:
        number: the number of the snapshot.
        index: the index of the record in the output of the snapshot.
        hash: a small hash of the output.
        last: whether it is the last record.
    """

    number: int
    index: int
    hash: int
    last: bool

    def pack(self) -> int:
        """Return the id as a positive number of 63 bits."""
        if self.number > _MAX_NUMBER or self.index > _MAX_INDEX:
            raise TooManyError(
                f"a publishing id of RabbitMQ has room for {_MAX_NUMBER:,} snapshots with "
                f"{_MAX_INDEX + 1:,} records each, and record {self.index:,} of snapshot "
                f"{self.number:,} is beyond: take snapshots more often, or write to another stream"
            )
        packed = self.number << _INDEX_BITS | self.index
        return (packed << _HASH_BITS | self.hash) << 1 | self.last

    @staticmethod
    def unpack(packed: int) -> PublishingId | None:
        """Return the parts of an id; None for 0, which is that of a new publisher."""
        if packed == 0:
            return None
        rest, last = packed >> 1, packed & 1
        rest, small = rest >> _HASH_BITS, rest & ((1 << _HASH_BITS) - 1)
        return PublishingId(rest >> _INDEX_BITS, rest & _MAX_INDEX, small, bool(last))


def small_hash(digest: str) -> int:
    """Return a hash of six bits of the digest of a marker."""
    return zlib.crc32(digest.encode()) & ((1 << _HASH_BITS) - 1)


def numbered(number: int, digest: str, contents: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the publishing id and the content of each record of a snapshot."""
    small, index = small_hash(digest), -1
    held: bytes | None = None
    for content in contents:
        if held is not None:
            yield PublishingId(number, index, small, False).pack(), held
        held, index = content, index + 1
    if held is not None:
        yield PublishingId(number, index, small, True).pack(), held
