"""The base of the protocols: a task's inputs, and the numbers of snapshots.

Everything belongs to a snapshot number. Barriers and aborts of a number that is over are stale and
change nothing. A higher number on any channel gives up a lower one, whether or not the abort of
the lower one has come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from enum import Enum

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.events import Command, Event

__all__ = ["Phase", "SnapshotProtocol"]


class Phase(Enum):
    """The phase of a task's snapshot.

    A task logs from the copy of its state until the last of its logs has ended. It ends at once
    where there is nothing to log. Algorithm 1 never logs.
    """

    IDLE = "idle"
    ALIGNING = "aligning"
    LOGGING = "logging"


class SnapshotProtocol(ABC):
    """The state machine of one task: events in, an ordered list of commands out.

    Nothing in it waits, reads a clock or touches a channel.

    Arguments:
        inputs: all input channels; empty for a source, whose barriers arrive on None.
        back_edges: the inputs that are back-edges.
    """

    def __init__(self, inputs: Iterable[Hashable], back_edges: Iterable[Hashable] = ()) -> None:
        self.inputs = tuple(inputs)
        self.back_edges = frozenset(back_edges)
        self.regular = frozenset(self.inputs) - self.back_edges
        #: Number of the snapshot that the task takes part in; None while there is none.
        self.number: int | None = None
        #: The highest number that was taken or given up; barriers up to it are stale.
        self.settled = -1

    @abstractmethod
    def handle(self, event: Event) -> list[Command]:
        """Return the commands that an event leads to, in the order of execution.

        Raises:
            ProtocolError: if the event is impossible in this state, which does not change.
        """

    @abstractmethod
    def validate(self) -> None:
        """Raise `ProtocolError` unless every invariant holds; for tests."""

    @abstractmethod
    def _give_up(self) -> list[Command]:
        """Abandon the snapshot in progress."""

    @abstractmethod
    def _describe(self) -> str:
        """Return the state, for error messages."""

    def _require_input(self, channel: Hashable | None, number: int) -> None:
        expected = channel in self.inputs if self.inputs else channel is None
        if not expected:
            raise self._error(f"barrier {number} on {channel}, which is no input")

    def _supersede(self, number: int) -> list[Command] | None:
        """Give up a snapshot that is older than `number`; return None if `number` is stale."""
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
