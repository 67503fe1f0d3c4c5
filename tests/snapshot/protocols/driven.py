"""Drive the protocol of one task by hand; shared by the tests of all modes."""

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
    """Checks the invariants after each event; a refused event must not change the protocol."""

    def __init__(self, protocol: P) -> None:
        self.protocol = protocol

    def handle(self, event: Event) -> list[Command]:
        before = deepcopy(vars(self.protocol))
        try:
            commands = self.protocol.handle(event)
        except ProtocolError:
            assert vars(self.protocol) == before, "an event that was refused changed something"
            raise
        self.protocol.validate()
        return commands

    def barrier(self, channel: str | None, number: int = 1) -> list[Command]:
        """Take a barrier from a channel."""
        return self.handle(BarrierArrived(channel, number))

    def announced(self, channel: str, number: int = 1, urgent: bool = False) -> list[Command]:
        """Announce a barrier at the gate."""
        return self.handle(BarrierAnnounced(channel, number, urgent))

    def abort(self, number: int = 1) -> list[Command]:
        return self.handle(SnapshotAborted(number))

    def complete(self, number: int = 1) -> list[Command]:
        return self.handle(SnapshotCompleted(number))
