"""Decide which messages of an MQTT session are new, and which are acknowledged when.

A broker sends a message again, with the same packet id, when a connection is resumed before the
message was acknowledged. It may use the packet id for another message as soon as it is
acknowledged. So within one process, a message that comes again can be recognised as long as it is
not acknowledged. After a failure of the process it cannot: the source is at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Delivery(Enum):
    """Classifies messages that arrive by whether the source has them already."""

    NEW = "new"
    #: It is held already, and acknowledged later.
    HELD = "held"
    #: It is in a complete snapshot already, and must be acknowledged at once.
    COMPLETE = "complete"


@dataclass
class _Held:
    number: int
    digest: int
    complete: bool = False


class Deliveries:
    """The messages of one session that are not acknowledged.

    Each new message has a number. A snapshot contains the number of the last message before it.

    Arguments:
        count: the number of the last message of earlier processes.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        #: The messages that came on the present connection, by packet id.
        self._current: dict[int, _Held] = {}
        #: The messages of earlier connections that have not come again yet, by packet id.
        self._previous: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def receive(self, packet_id: int, digest: int, *, again: bool) -> Delivery:
        """Record a message that the broker has sent.

        Arguments:
            packet_id: the packet id, which is 0 if the broker wants no acknowledgement.
            digest: a hash of the topic and the payload.
            again: whether the broker marks the message as a duplicate (DUP): it may have sent it
                before.
        """
        held = self._previous.pop(packet_id, None)
        if held is not None and again and held.digest == digest:
            if held.complete:
                return Delivery.COMPLETE
            self._current[packet_id] = held
            return Delivery.HELD
        self.count += 1
        if packet_id:
            self._current[packet_id] = _Held(self.count, digest)
        return Delivery.NEW

    def complete(self, number: int) -> list[int]:
        """Record that a snapshot contains all messages up to `number`.

        Returns:
            The packet ids to acknowledge on the present connection.
        """
        ready = [id for id, held in self._current.items() if held.number <= number]
        for id in ready:
            del self._current[id]
        for held in self._previous.values():
            held.complete = held.complete or held.number <= number
        return ready

    def disconnect(self) -> None:
        """Record that the connection is lost. Nothing can be acknowledged before the next one."""
        self._previous |= self._current
        self._current = {}

    def connect(self, *, resumed: bool) -> int:
        """Record a new connection.

        Arguments:
            resumed: whether the broker has kept the session.

        Returns:
            The number of messages that are in no complete snapshot, and that the broker has
            forgotten.
        """
        self.disconnect()
        if resumed:
            return 0
        forgotten = sum(not held.complete for held in self._previous.values())
        self._previous = {}
        return forgotten
