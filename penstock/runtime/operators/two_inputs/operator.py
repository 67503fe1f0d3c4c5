"""The operator with two inputs, which gives the batches of each input to one of its sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from penstock.runtime.network.elements import TimeElement
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.two_inputs.broadcast import BroadcastStates
from penstock.runtime.serialization.record_batch import RecordBatch

Piece = TypeVar("Piece")


class TwoInputOperator(RunningOperator):
    """Runs a function with two inputs. It is always the first operator of its chain.

    Arguments:
        function: the user's function.
        context: the operator's place in the job. The sides have the same context.
        first: processes the records of the first input. It also runs the end-of-input hook, and
            fires the timers.
        second: processes the records of the second input.
        broadcast_states: the broadcast states of the function; None if it has none.
    """

    def __init__(
        self,
        function: Any,
        context: OperatorContext,
        first: RunningOperator,
        second: RunningOperator,
        broadcast_states: BroadcastStates | None = None,
    ) -> None:
        super().__init__(function, context)
        self._first, self._second = first, second
        self._side = first
        self._broadcast_states = broadcast_states

    def open(self) -> None:
        """Open the function, and then the two sides."""
        if self._broadcast_states is not None:
            self._broadcast_states.open()
        super().open()
        self._first.open()
        self._second.open()

    def select_input(self, input: int) -> None:
        """Set the input of the next batches: 0 for the first, 1 for the second."""
        self._side = self._second if input else self._first
        self.emits = self._side.emits

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch of the selected input, and return the emitted records."""
        side = self._side
        try:
            out = side.process(batch)
        finally:
            self.iterator = side.iterator
        if side.side_outputs:
            self.side_outputs.take_over(side.side_outputs)
        return out

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire the event-time timers that are due."""
        return self._with_side_outputs(self._first.advance_watermark(timestamp))

    def next_processing_time(self) -> int | None:
        """Return the time at which the first processing-time timer is due, or None."""
        return self._first.next_processing_time()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Fire the processing-time timers that are due."""
        return self._with_side_outputs(self._first.advance_processing_time(now))

    def _end_input(self) -> Iterator[list[Any]]:
        return self._with_side_outputs(self._first._end_input())

    def _with_side_outputs(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Yield the pieces, and pass on the side-output records of the first side."""
        emitted = self._first.side_outputs
        for piece in pieces:
            self.side_outputs.take_over(emitted)
            yield piece
        self.side_outputs.take_over(emitted)
