"""Define where a job begins to read streams: `RedisOffsets`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from penstock.dataflow.errors import GraphError

_ID = re.compile(r"(\d+)(?:-(\d+))?")
_MAX = 2**64 - 1


@dataclass(frozen=True)
class RedisOffsets:
    """Chooses where a job that has no snapshot begins to read streams.

    It has the form of Flink's `KafkaOffsetsInitializer`. The place is looked up once, when the job
    is started. A resumed job goes on at the positions of its snapshot.

    Arguments:
        kind: the kind of the beginning.
        timestamp: the time in milliseconds since the epoch, for the kind "timestamp".
        ids: the id behind which reading begins, of each stream or of all ("*"), for the kind "ids".

    Examples:
        >>> RedisOffsets.ids("1700000000000-0").kind
        'ids'
    """

    kind: Literal["earliest", "latest", "timestamp", "ids"]
    timestamp: int = 0
    after: dict[str, str] = field(default_factory=dict)

    @classmethod
    def earliest(cls) -> RedisOffsets:
        """Begin at the first entry that a stream has."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> RedisOffsets:
        """Begin behind the last entry that a stream has when the job is started."""
        return cls("latest")

    @classmethod
    def at_timestamp(cls, milliseconds: int) -> RedisOffsets:
        """Begin at the first entry whose id has this time or a later one."""
        if milliseconds < 0:
            raise GraphError(f"a timestamp has milliseconds since 1970, and got {milliseconds}")
        return cls("timestamp", timestamp=milliseconds)

    @classmethod
    def ids(cls, after: str | dict[str, str]) -> RedisOffsets:
        """Begin behind the entry with this id, or behind the id that each stream has here.

        Raises:
            GraphError: if an id has not the form `milliseconds-number`.
        """
        ids = {"*": after} if isinstance(after, str) else dict(after)
        for id in ids.values():
            parse_id(id)
        return cls("ids", after=ids)

    def id_of(self, stream: str) -> str | None:
        """Return the id behind which a stream is to be read, for the kind "ids"."""
        id = self.after.get(stream, self.after.get("*"))
        return None if id is None else format_id(parse_id(id))


def parse_id(id: str) -> tuple[int, int]:
    """Return the two numbers of an id; ids are ordered as these pairs are.

    Raises:
        GraphError: if it is not an id.
    """
    found = _ID.fullmatch(id)
    if found is None or int(found[1]) > _MAX or int(found[2] or 0) > _MAX:
        raise GraphError(f"the id of an entry has the form 1700000000000-0, and got {id!r}")
    return int(found[1]), int(found[2] or 0)


def format_id(id: tuple[int, int]) -> str:
    """Return the text of an id."""
    return f"{id[0]}-{id[1]}"


def id_before(milliseconds: int) -> str:
    """Return the last id in front of a time."""
    return format_id((milliseconds - 1, _MAX)) if milliseconds > 0 else "0-0"
