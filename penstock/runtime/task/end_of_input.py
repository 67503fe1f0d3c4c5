"""How the input of a task ends.

Outside of loops: when all channels have delivered the end of input, the end-of-input hooks of the
chain run once, and the end is passed on. In a loop some channels come from the loop itself and
never end by themselves: when all channels from *outside* have ended the JobManager is told. It
finds out by snapshots when the loop is quiet (`penstock.snapshot.coordination.loop_termination`),
has the hooks run in rounds, and closes the loop.

How often the hooks have run is part of the task's state in a snapshot, so that they do not run
again after a restart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.dataflow.functions import has_end_input
from penstock.runtime.operators.base import RunningOperator

__all__ = ["EndOfInputTracker", "HookOutput"]


@dataclass(frozen=True)
class HookOutput:
    """Records that an operator's hook emitted."""

    operator: RunningOperator
    records: list[Any]


class EndOfInputTracker:
    """What a task knows of the end of its input.

    Arguments:
        channels: its input channels.
        outside: those of them that come from outside of its loop; None if it is in none.
        operators: of its chain, parents first.
    """

    def __init__(
        self,
        channels: Iterable[Hashable],
        outside: Iterable[Hashable] | None,
        operators: list[RunningOperator],
    ) -> None:
        self.in_loop = outside is not None
        self._awaited = set(channels if outside is None else outside)
        self._operators = operators
        #: Uids of the operators that have a hook.
        self.hooked = tuple(o.context.uid for o in operators if has_end_input(o.function))
        #: How often the hooks have run, and whether the last run emitted into the loop.
        self.rounds = 0
        self.emitted = False
        #: Whether hooks are running; the task does nothing else until they have run.
        self.running = False
        self._hooks: Iterator[HookOutput] = iter(())

    @property
    def over(self) -> bool:
        """Whether no more input comes (from outside of the loop, in a loop)."""
        return not self._awaited

    def channel_ended(self, channel: Hashable) -> bool:
        """A channel has ended; True if the awaited input is over with that."""
        if channel not in self._awaited:
            return False
        self._awaited.discard(channel)
        return not self._awaited

    def restore(self, rounds: int, emitted: bool) -> None:
        """Take back what a snapshot holds."""
        self.rounds, self.emitted = rounds, emitted

    def begin(self, round: int) -> bool:
        """Begin a round of hooks; False if it has run already, or there are none to run."""
        if self.rounds >= round or not (self.in_loop or self.hooked):
            return False
        # In a loop the round counts for every task, whether it has hooks or not.
        self.rounds, self.emitted = round, False
        if not self.hooked:
            return False
        self.running = True
        self._hooks = (
            HookOutput(operator, records)
            for operator in self._operators
            for records in operator.end_input()
        )
        return True

    def record_emission(self) -> None:
        """Note that a hook has emitted something into the task's own loop."""
        self.emitted = True

    def next(self) -> HookOutput | None:
        """Return what the hooks emit next, or None at the end of the round."""
        assert self.running
        output = next(self._hooks, None)
        self.running = output is not None
        return output

    @property
    def running_operator(self) -> RunningOperator:
        """Return the operator whose hook is running; an error is reported for it."""
        return next((o for o in self._operators if o.in_end_of_input_hook), self._operators[0])
