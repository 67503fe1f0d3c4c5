"""Track the end of a task's input, and run the end-of-input hooks of its chain.

Outside of loops, the hooks run once when all channels have delivered the end of input. Then the
task sends the end of input downstream.

For a task in a loop, some channels come from the loop itself and never end by themselves. When all
channels from *outside* have ended, the task notifies the JobManager. The JobManager uses snapshots
to detect that no records are left in the loop. Then it starts rounds of end-of-input hooks, and
finally closes the loop (`penstock.snapshot.coordination.loop_termination`).

The snapshots of the task contain the number of completed rounds, so that hooks do not run again
after a restart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from penstock.dataflow.functions import has_end_input
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.user_code.errors import to_job_error


@dataclass(frozen=True)
class HookOutput:
    """The records that an operator's end-of-input hook has emitted."""

    operator: RunningOperator
    records: RecordBatch


class EndOfInputTracker:
    """Tracks the end of a task's input, and runs its end-of-input hooks.

    Arguments:
        channels: the ids of the task's input channels.
        outside: the ids of the channels from outside of the task's loop; None if the task is in no
            loop.
        operators: the operators of the chain. Each operator comes after its parent.
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
        #: The uids of the operators that have an end-of-input hook.
        self.hooked = tuple(o.context.uid for o in operators if has_end_input(o.function))
        #: The number of rounds of hooks that have begun.
        self.rounds = 0
        #: Whether the last round of hooks has emitted records into the loop.
        self.emitted = False
        #: Whether hooks are running. The task processes nothing else until they have run.
        self.running = False
        self._hooks: Iterator[HookOutput] = iter(())

    @property
    def over(self) -> bool:
        """Return whether all input has ended, or in a loop, all input from outside of it."""
        return not self._awaited

    def channel_ended(self, channel: Hashable) -> bool:
        """Record that a channel has ended, and return whether it was the last awaited channel."""
        if channel not in self._awaited:
            return False
        self._awaited.discard(channel)
        return not self._awaited

    def restore(self, rounds: int, emitted: bool) -> None:
        """Restore the values of `rounds` and `emitted` from a snapshot."""
        self.rounds, self.emitted = rounds, emitted

    def begin(self, round: int) -> bool:
        """Begin a round of end-of-input hooks.

        Returns:
            Whether hooks are running now. The value is False if the round has run before, or if
            there are no hooks.
        """
        if self.rounds >= round or not (self.in_loop or self.hooked):
            return False
        # In a loop, tasks without hooks also count the round.
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
        """Record that a hook has emitted records into the task's own loop."""
        self.emitted = True

    def next(self) -> HookOutput | None:
        """Run the hooks until they emit records, and return the records.

        Return None if the round is over. Raise a `JobError` if a hook fails.
        """
        assert self.running
        try:
            output = next(self._hooks, None)
        except BaseException as error:
            raise to_job_error(error, self._running_operator, []) from error
        self.running = output is not None
        return output

    @property
    def _running_operator(self) -> RunningOperator:
        """Return the operator whose hook is running, so that errors can name it."""
        return next((o for o in self._operators if o.in_end_of_input_hook), self._operators[0])
