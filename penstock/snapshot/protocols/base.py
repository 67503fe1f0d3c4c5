"""The base class of all snapshot protocols.

Each barrier and each abort has a snapshot number. If the snapshot was already taken or given up,
its barriers and aborts are stale, and the protocol ignores them. When a barrier with a higher
number arrives on any channel, the protocol gives up the current snapshot. It does not wait until
the coordinator aborts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from enum import Enum

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.events import Command, Event


class Phase(Enum):
    """The phase of a task within a snapshot.

    While *aligning*, the task waits for barriers. *Logging* begins when the task copies its state,
    and ends when its last in-flight log is complete. If there is no channel to log, the phase ends
    at once. The protocol of ABS Algorithm 1 has no logging phase.
    """

    IDLE = "idle"
    ALIGNING = "aligning"
    LOGGING = "logging"


class SnapshotProtocol(ABC):
    """Decides when one task takes its snapshots. Base class of all protocols.

    A protocol is a state machine. It handles events, and returns an ordered list of commands for
    each event. It never waits, and it never reads a clock or a channel.

    Arguments:
        inputs: all input channels. A source has none; its barriers arrive on channel None.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        self.inputs = tuple(inputs)
        self.back_edges = frozenset(back_edges)
        self.regular = frozenset(self.inputs) - self.back_edges
        #: The number of the snapshot in progress, or None if there is none.
        self.number: int | None = None
        #: The highest number of a snapshot that was taken or given up. Barriers with this number
        #: or a lower one are stale.
        self.settled = -1

    @abstractmethod
    def handle(self, event: Event) -> list[Command]:
        """Handle an event, and return the commands that the task must execute, in order.

        Raises:
            ProtocolError: if the event is impossible in the current state. The protocol then keeps
                its state.
        """

    @abstractmethod
    def validate(self) -> None:
        """Check all invariants, and raise `ProtocolError` if one does not hold. Tests call it."""

    @abstractmethod
    def _give_up(self) -> list[Command]:
        """Give up the current snapshot, and return the commands that the task must execute."""

    @abstractmethod
    def _describe(self) -> str:
        """Return a text that describes the state of the protocol, for error messages."""

    def _require_input(self, channel: Hashable | None, number: int) -> None:
        expected = channel in self.inputs if self.inputs else channel is None
        if not expected:
            raise self._error(f"barrier {number} on {channel}, which is no input")

    def _supersede(self, number: int) -> list[Command] | None:
        """Give up the current snapshot if it is older than snapshot `number`.

        Returns:
            The commands that the task must execute first, or None if `number` is stale.
        """
        if number <= self.settled or (self.number is not None and number < self.number):
            return None
        return self._give_up() if self.number is not None and number > self.number else []

    def _abort(self, number: int) -> list[Command]:
        if self.number is not None and number < self.number:
            return []
        commands = [] if self.number is None else self._give_up()
        self.settled = max(self.settled, number)
        return commands

    def _error(self, problem: str) -> ProtocolError:
        return ProtocolError(f"{problem}: {self._describe()}")
