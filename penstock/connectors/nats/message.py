"""Define `NatsMessage`, a message of a stream as a function that decodes it gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class NatsMessage(NamedTuple):
    """A message of a stream.

    Arguments:
        subject: the subject that it was published to.
        sequence: its sequence in the stream.
        timestamp: the time at which it was stored, in milliseconds since the epoch.
        data: its content.
        headers: its headers; empty if it has none.

    Examples:
        >>> NatsMessage("orders.eu", 5, 1_700_000_000_000, b"tea", {}).data.decode()
        'tea'
    """

    subject: str
    sequence: int
    timestamp: int
    data: bytes
    headers: Mapping[str, str]


def data_as_text(message: NatsMessage) -> str:
    """Return the content of a message as text."""
    return message.data.decode()
