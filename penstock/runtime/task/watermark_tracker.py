"""Track the watermark of a task, and let its operators do what is due at a new one.

A new watermark *fires* at the first operator of the chain: timers and windows emit records. This
may take long, so it runs in pieces, between which the task handles barriers. The task processes
nothing else meanwhile. Then the watermark goes on to the other operators and to all outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator

from penstock.dataflow.time.watermark import MAX_WATERMARK, Watermark
from penstock.runtime.network.elements import EndOfInput, TimeElement, WatermarkStatus
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.watermark_valve import WatermarkValve

__all__ = ["WatermarkTracker"]


class WatermarkTracker:
    """Tracks the watermark of a task, and runs what is due at a new one.

    Arguments:
        chain: the operators of the task.
        channels: the ids of the input channels that have watermarks.
    """

    def __init__(self, chain: ChainRunner, channels: Iterable[Hashable]) -> None:
        self._chain = chain
        self.valve = WatermarkValve(channels)
        #: The elements that the operators have not handled yet, in order.
        self._queue: deque[RecordBatch | TimeElement | EndOfInput] = deque()
        self._firing: Iterator[None] | None = None
        #: Whether elements of event time are being handled. The task checks it in each step.
        self.running = False
        #: Whether the last watermark has gone to all outputs.
        self.at_end = False

    def receive(self, channel: Hashable, element: TimeElement) -> None:
        """Handle an element of an input channel."""
        for combined in self.valve.handle(channel, element):
            self.add(combined)

    def end_channel(self, channel: Hashable) -> None:
        """Handle that a channel has ended: it holds no watermark back any more."""
        self.receive(channel, Watermark(MAX_WATERMARK))

    def add(self, element: RecordBatch | TimeElement | EndOfInput) -> None:
        """Handle an element for the operators, after those that are being handled."""
        self._queue.append(element)
        self.running = True

    def step(self) -> RecordBatch | EndOfInput | None:
        """Run the next piece of work.

        Returns:
            A batch that the task must process now, or `EndOfInput` once all elements before it are
            handled; else None.
        """
        due: RecordBatch | EndOfInput | None = None
        if self._firing is not None:
            if next(self._firing, self) is self:
                self._firing = None
        elif isinstance(element := self._queue.popleft(), Watermark):
            self.at_end = element.timestamp == MAX_WATERMARK
            self._firing = self._chain.advance(element)
        elif isinstance(element, WatermarkStatus):
            self._chain.set_status(element)
        else:
            due = element
        self.running = self._firing is not None or bool(self._queue)
        return due
