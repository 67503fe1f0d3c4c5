"""Define `RedisEntry`, an entry of a stream as a function that decodes it gets it."""

from __future__ import annotations

from typing import NamedTuple


class RedisEntry(NamedTuple):
    """An entry of a Redis stream.

    Arguments:
        stream: the key of the stream.
        id: the id of the entry, such as "1700000000000-0".
        fields: the names and values of its fields.

    Examples:
        >>> RedisEntry("orders", "1700000000000-5", {"product": b"tea"}).timestamp
        1700000000000
    """

    stream: str
    id: str
    fields: dict[str, bytes]

    @property
    def timestamp(self) -> int:
        """The event time of the entry, from its id, in milliseconds since the epoch."""
        return int(self.id.partition("-")[0])


def fields_as_text(entry: RedisEntry) -> dict[str, str]:
    """Return the fields of an entry as text."""
    return {name: value.decode() for name, value in entry.fields.items()}
