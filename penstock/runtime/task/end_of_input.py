"""Track the end of a task's input, and run the end-of-input hooks of its chain.

Outside of loops, the hooks run once when all channels have delivered the end of input. Then the
task sends the end of input on.

In a loop some channels come from the loop itself, and never end by themselves. When all channels
from *outside* have ended, the task notifies the JobManager. By snapshots the JobManager detects
that the loop is quiet (`penstock.snapshot.coordination.loop_termination`), lets the hooks run in
rounds, and closes the loop.

The number of rounds that have run is in the task's snapshots, so that hooks do not run again after
a restart.
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
    """The state of one task with regard to the end of its input.

    Arguments:
        channels: the task's input channels.
        outside: the channels from outside of the task's loop; None if the task is in no loop.
        operators: the operators of the chain, parents first.
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
        #: The number of rounds of hooks that have run, and whether the last one emitted into the
        #: loop.
        self.rounds = 0
        self.emitted = False
        #: Whether hooks are running; the task does nothing else until they have run.
        self.running = False
        self._hooks: Iterator[HookOutput] = iter(())

    @property
    def over(self) -> bool:
        """Return whether all input has ended; in a loop, all input from outside."""
        return not self._awaited

    def channel_ended(self, channel: Hashable) -> bool:
        """Note that a channel has ended; return whether it was the last one that is awaited."""
        if channel not in self._awaited:
            return False
        self._awaited.discard(channel)
        return not self._awaited

    def restore(self, rounds: int, emitted: bool) -> None:
        """Restore the state that a snapshot holds."""
        self.rounds, self.emitted = rounds, emitted

    def begin(self, round: int) -> bool:
        """Begin a round of hooks; return False if it has run before, or there are no hooks."""
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
