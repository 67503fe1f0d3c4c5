"""Hold a position in a stream, and find out whether entries behind it are lost.

A stream is trimmed by its producers, so entries may vanish before a job has read them. Redis does
not say so: it returns the entries that are left. But it counts the entries that a stream has ever
had (`entries-added`). The position has the number that its entry has in this count. If all entries
up to the position are gone, the entries behind it should be as many as were added since:

    entries-added = number of the position + entries that are left

If more were added, some are lost. The same count, and the last id, show a server that lost its
newest data, or a stream that was deleted and made again.

The number is unknown if reading began in the middle of a stream, or if entries in it were deleted
with XDEL. It becomes known when the reader has reached the end of the stream. As long as it is
unknown, a position whose entry is gone counts as lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.connectors.redis.offsets import parse_id
from penstock.dataflow.type_variables import PlainValue

START = "0-0"


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, behind an entry.

    Arguments:
        id: the id of the entry.
        number: how many entries the stream had had when this one was added, with it; or None.
        read: whether the entry was read. Otherwise it is a place where reading begins.
        added: how many entries the stream had had when the reader asked last.
    """

    id: str = START
    number: int | None = None
    read: bool = False
    added: int = 0

    def to_plain(self) -> PlainValue:
        """Return the position for a snapshot."""
        return [self.id, self.number, self.read, self.added]

    @classmethod
    def from_plain(cls, value: Any) -> StreamPosition:
        """Return the position that a snapshot has."""
        return cls(*value)


@dataclass(frozen=True)
class StreamInfo:
    """Describes the state of a stream on the server.

    Arguments:
        length: the number of its entries.
        added: the number of entries that it has ever had.
        first: the id of the first entry; None if there is none.
        last: the id of the newest entry that it has ever had.
        deleted: the greatest id that was deleted with XDEL.
    """

    length: int
    added: int
    first: str | None
    last: str
    deleted: str

    @classmethod
    def from_answer(cls, answer: dict[str, Any]) -> StreamInfo:
        """Return the answer to XINFO STREAM, as a dict."""
        first = answer["first-entry"]
        return cls(
            answer["length"],
            answer["entries-added"],
            None if not first or first[0] is None else as_text(first[0]),
            as_text(answer["last-generated-id"]),
            as_text(answer["max-deleted-entry-id"]),
        )

    @property
    def before_first(self) -> int | None:
        """How many entries there were in front of the first one; None if that is unknown."""
        if self.first is not None and parse_id(self.deleted) >= parse_id(self.first):
            return None  # some of those that are missing were behind the first one
        return self.added - self.length

    def starts_behind(self, id: str) -> bool:
        """Return whether all entries up to an id are gone."""
        return self.first is None or parse_id(self.first) > parse_id(id)

    def position_at(self, id: str) -> StreamPosition:
        """Return the position at an id where reading begins."""
        number = self.before_first if self.starts_behind(id) else None
        if id == self.last:
            number = self.added
        elif parse_id(id) > parse_id(self.last):
            number = None  # in the future
        return StreamPosition(id, number, False, self.added)


def what_is_lost(
    at: StreamPosition, info: StreamInfo | None, *, present: bool = True
) -> str | None:
    """Describe what a stream has lost behind a position; None if nothing is lost.

    Arguments:
        at: the position.
        info: what the server knows about the stream; None if it has no such stream.
        present: whether the entry of the position is there. True if that was not asked.
    """
    known = max(at.added, at.number or 0)
    if info is None:
        if not at.read and not known:
            return None  # it never existed
        return "the stream does not exist any more: it was deleted, or the server has lost its data"
    again = "the server has lost its newest data, or the stream was deleted and made again"
    if info.added < known:
        return (
            f"{known} entries had been added to it, and it has only had {info.added} now: {again}"
        )
    if not at.read and at.number is None:
        return None
    if parse_id(info.last) < parse_id(at.id):
        return f"the stream ends with the id {info.last} now: {again}"
    if not info.starts_behind(at.id):
        if at.read and not present and parse_id(info.deleted) < parse_id(at.id):
            return f"this entry does not exist any more, and older ones do: {again}"
        return None
    if info.last == at.id:
        return None
    first = "it is empty now" if info.first is None else f"the first one is {info.first} now"
    if at.number is None:
        return f"entries behind it may be trimmed or deleted: {first}"
    lost = info.added - info.length - at.number
    if lost < 0:
        return f"its entries are others than before: {again}"
    return f"{lost} entries behind it were trimmed or deleted: {first}" if lost else None


def as_text(value: bytes | str) -> str:
    """Return a text that the client has returned as bytes or as text."""
    return value.decode() if isinstance(value, bytes) else value
