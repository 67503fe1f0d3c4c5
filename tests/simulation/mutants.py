"""Wrong ways to take a snapshot of a loop, which tests must find out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.runtime.network.elements import Barrier, Element
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.snapshot.coordination.loop_termination import (
    LoopCommand,
    LoopEvent,
    LoopTerminationDetector,
    StatusReported,
)
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.events import BlockChannel, Command, Event, UnblockChannels
from tests.simulation.tasks import Kit, Recording


class SubsetOnly(AlignedCyclicProtocol):
    """Line 13 reads `regular ⊆ marked`, and a back-edge is never blocked."""

    def handle(self, event: Event) -> list[Command]:
        commands: list[Command] = []
        for command in super().handle(event):
            if isinstance(command, UnblockChannels):
                channels = tuple(c for c in command.channels if c not in self.back_edges)
                commands.append(UnblockChannels(channels))
            elif not (isinstance(command, BlockChannel) and command.channel in self.back_edges):
                commands.append(command)
        self.blocked = {c: None for c in self.blocked if c not in self.back_edges}
        return commands

    def validate(self) -> None:
        """Its invariants are not those of the right one."""


class AsPrinted(SubsetOnly):
    """Line 13 as it is printed: `marked = regular`."""

    def _is_aligned(self) -> bool:
        return self.marked.keys() == self.regular


class LogsArrivalsOnly(FeedbackChannel):
    """Leaves out what waits in the channel at the cut."""

    def start_log(self, number: int, keep: bool = True) -> Any:
        log = super().start_log(number, keep)
        log.release()
        self._hold = None
        log.records = 0
        return log


class LogsUntilTaken(FeedbackChannel):
    """Ends a log where the task takes the barrier, and not where it arrives."""

    def _barrier_arrived(self, barrier: Barrier) -> None:
        self.late = barrier

    def take(self) -> Element:
        element = super().take()
        late = getattr(self, "late", None)
        if late is not None and late == element:
            self.late = None
            super()._barrier_arrived(late)
        return element


class KeepsNoLog(FeedbackChannel):
    """Ends its log in time, and loses it."""

    def start_log(self, number: int, keep: bool = True) -> Any:
        return super().start_log(number, keep=False)


class ReplaysLast(InputGate):
    """Reads what a snapshot's logs hold when there is nothing else."""

    def take(self) -> Any:
        replay, self._replay = self._replay, None
        taken = super().take()
        if taken is not None:
            self._replay = replay
            return taken
        self._replay = replay
        return super().take()


class BlocksWhenFull(FeedbackChannel):
    """A back-edge with a bound: its sender waits for the task."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._on_credit = None

    @property
    def room(self) -> int:
        return 1 - len(self._queue)


class ForgetsHooks(Recording):
    """Forgets, when it is restored, how often its hooks have run."""

    def open(self) -> None:
        self.end_of_input.rounds = 0
        super().open()


class IgnoresLogs(LoopTerminationDetector):
    """Takes a loop for quiet whose back-edges hold records."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            event = replace(event, status=replace(event.status, log_records=0))
        return super().handle(event)


class IgnoresTheOutside(LoopTerminationDetector):
    """Takes a loop for quiet whose input from outside had not ended at the cut."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            event = replace(event, status=replace(event.status, outside_ended=True))
        return super().handle(event)


#: What they do wrong, by name; with what a search says of it.
MUTANTS = {
    "line 13 as printed": (Kit(aligned_cyclic=AsPrinted), "waits for ever"),
    "back-edges are not blocked": (Kit(aligned_cyclic=SubsetOnly), "doubled"),
    "logs begin too late": (Kit(back_edge=LogsArrivalsOnly), "lost"),
    "logs end where the barrier is taken": (Kit(back_edge=LogsUntilTaken), "doubled"),
    "logs are dropped": (Kit(back_edge=KeepsNoLog), "lost"),
    "logs are replayed last": (Kit(gate=ReplaysLast), "lost|never ends"),
    "back-edges are bounded": (Kit(back_edge=BlocksWhenFull), "waits for"),
    "loops are closed with records in logs": (Kit(watch=IgnoresLogs), "is closed while|too much"),
    "loops are closed before their input ends": (Kit(watch=IgnoresTheOutside), "is closed"),
    "hooks run again after a restore": (Kit(task=ForgetsHooks), "too much"),
}
