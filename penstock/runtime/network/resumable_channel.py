"""An input channel whose sender can restart while the receiving task continues.

The sender restarts from a snapshot, and sends the records behind its barrier again, in the same
order. The task has processed some of them: it counts those that it has taken behind each barrier.
So the channel drops as many, and then continues. (Carbone et al. 2015, section 4.4: tasks drop
records that they have processed. The paper numbers the records of the sources. To count the records
of a channel has the same effect if the sender is deterministic, and costs nothing per record.)
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    EndOfInput,
    WatermarkStatus,
    count_of,
)
from penstock.runtime.network.input_channel import ChannelListener, InputChannel
from penstock.runtime.serialization.record_batch import RecordBatch


class ResumableChannel(InputChannel):
    """An input channel that drops records which a restarted sender sends again.

    Arguments:
        id, listener, capacity, clock: as for `InputChannel`.
        restored: the number of the snapshot that the receiving task has restored; 0 if none.
        learn: takes the steps that the sender has logged; None if no task logs its steps.
    """

    def __init__(
        self,
        id: ChannelId,
        listener: ChannelListener,
        capacity: int,
        clock: Callable[[], float],
        restored: int = 0,
        learn: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(id, listener, capacity, clock)
        #: The number of records that the task has taken, and what it was at each barrier of a
        #: snapshot that may still be restored, in the order of the barriers.
        self._taken = 0
        self._taken_at = {restored: 0}
        #: The number of records that the channel still has to drop, and what to call then.
        self.repeated = 0
        self._caught_up: Callable[[], None] = lambda: None
        self._learn = learn

    def take(self) -> Element:
        """Remove and return the first element, and count its records."""
        element = super().take()
        if isinstance(element, RecordBatch | EncodedBatch):
            self._taken += count_of(element)
        elif isinstance(element, Barrier):
            self._taken_at[element.number] = self._taken
        return element

    def snapshot_completed(self, number: int) -> None:
        """Forget the barriers before those of snapshot `number`, which is complete."""
        if number in self._taken_at:
            order = list(self._taken_at)
            for earlier in order[: order.index(number)]:
                del self._taken_at[earlier]

    def snapshot_aborted(self, number: int) -> None:
        """Forget the barrier of snapshot `number`, which was aborted."""
        self._taken_at.pop(number, None)

    def sender_restarts(self, number: int, caught_up: Callable[[], None]) -> None:
        """Expect the records behind the barrier of snapshot `number` again.

        The channel drops the elements that the task has not taken, since they come again.

        Arguments:
            number: the snapshot from which the sender restarts; 0 for the beginning of the input.
            caught_up: called when the channel has dropped all records that the task has processed,
                if there are some.

        Raises:
            ProtocolError: if the sender has sent its last record, or the channel does not know the
                snapshot.
        """
        if self.ended:
            raise ProtocolError(f"the sender of {self.id} restarts after its end of input")
        if number not in self._taken_at:
            raise ProtocolError(f"{self.id} does not know the barrier of snapshot {number}")
        self.repeated, self._caught_up = self._taken - self._taken_at[number], caught_up
        self._clear()
        # The sender may have been idle. After its restart it reports that only if it still is.
        super().put(WatermarkStatus(idle=False))

    def _clear(self) -> None:
        """Drop all queued elements."""
        if self._queue and not self.blocked:
            self._listener.on_emptied(self)
        for element in self._queue:
            if isinstance(element, Barrier):
                self._listener.on_barrier_taken()
        self._queue.clear()
        self._batches_queued = 0

    def learn_steps(self, data: bytes) -> None:
        """Take in steps of the sender at once, even if the channel is blocked.

        Raises:
            ProtocolError: if no task logs its steps, or the data are malformed.
        """
        if self._learn is None:
            super().learn_steps(data)
        else:
            self._learn(data)

    def put(self, element: Element) -> None:
        """Append an element to the channel, unless the task has processed it before.

        Raises:
            ProtocolError: as for `InputChannel`, or if the sender has not sent all records again.
        """
        if not self.repeated:
            super().put(element)
        elif isinstance(element, EncodedBatch):
            dropped = min(self.repeated, element.count)
            self.repeated -= dropped
            if dropped < element.count:
                rest = element.count - dropped
                super().put(EncodedBatch(element.payload, rest, dropped))
            elif self._on_credit is not None:
                self._on_credit()
            if not self.repeated:
                self._caught_up()
        elif isinstance(element, Barrier | EndOfInput):
            raise ProtocolError(
                f"the restarted sender of {self.id} has sent {self.repeated} records too few: its "
                f"functions are not deterministic"
            )
        else:
            super().put(element)
