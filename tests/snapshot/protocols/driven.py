"""Drives the protocol of one task by hand: what its tests in all modes share."""

from __future__ import annotations

from copy import deepcopy
from typing import Generic, TypeVar

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.base import SnapshotProtocol
from penstock.snapshot.protocols.events import (
    BarrierAnnounced,
    BarrierArrived,
    Command,
    Event,
    SnapshotAborted,
    SnapshotCompleted,
)

__all__ = ["DrivenProtocol"]


P = TypeVar("P", bound=SnapshotProtocol)


class DrivenProtocol(Generic[P]):
    """A protocol that is checked after each event, and that must not change by one it refuses."""

    def __init__(self, protocol: P) -> None:
        self.protocol = protocol

    def hear(self, event: Event) -> list[Command]:
        before = deepcopy(vars(self.protocol))
        try:
            commands = self.protocol.handle(event)
        except ProtocolError:
            assert vars(self.protocol) == before, "an event that was refused changed something"
            raise
        self.protocol.validate()
        return commands

    def barrier(self, channel: str | None, number: int = 1) -> list[Command]:
        """It is taken from the channel."""
        return self.hear(BarrierArrived(channel, number))

    def reached(self, channel: str, number: int = 1, urgent: bool = False) -> list[Command]:
        """It is at the gate."""
        return self.hear(BarrierAnnounced(channel, number, urgent))

    def abort(self, number: int = 1) -> list[Command]:
        return self.hear(SnapshotAborted(number))

    def complete(self, number: int = 1) -> list[Command]:
        return self.hear(SnapshotCompleted(number))
