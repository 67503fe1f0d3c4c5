"""Channels whose records in flight can be logged for a snapshot.

A log contains the elements that wait in the channel when the snapshot is taken, and the elements
that arrive before the barrier. The task processes these elements meanwhile. So a snapshot does not
wait until the channel is empty.

Algorithm 2 of the ABS paper logs back-edges (`feedback_channel.py`). Unaligned snapshots log every
channel. They also log the records that a task has taken but not processed, and the records that a
barrier overtook.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.channel_log import ChannelLog, EdgeIdentity, Encode, RecordedEntry
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    WatermarkStatus,
    count_of,
)
from penstock.runtime.network.input_channel import ChannelListener, InputChannel
from penstock.runtime.network.time_elements import to_marker
from penstock.runtime.serialization.record_batch import RecordBatch

#: A callback that receives the id of a channel, and a barrier that has arrived on it.
BarrierListener = Callable[[ChannelId, Barrier], None]


class RecordedChannel(InputChannel):
    """An input channel that can be logged. Credits limit it like any other input channel.

    Arguments:
        id, listener, capacity, clock: see `InputChannel`.
        edge: the identity of the channel's edge.
        encode: a function that returns the bytes of a batch, for the log.
        eager: whether to report every barrier on arrival, and not only barriers that end a log.
    """

    def __init__(
        self,
        id: ChannelId,
        listener: ChannelListener,
        capacity: int,
        clock: Callable[[], float],
        *,
        edge: EdgeIdentity,
        encode: Encode,
        eager: bool = False,
    ) -> None:
        super().__init__(id, listener, capacity, clock)
        self.edge = edge
        self._on_barrier: BarrierListener | None = None
        self._encode = encode
        self._eager = eager
        self._log: ChannelLog | None = None
        #: The log entries of batches that wait in memory, keyed by the `id()` of the batch. Logs
        #: that contain the same batch share its entry.
        self._entries: dict[int, RecordedEntry] = {}

    def report_barriers(self, listener: BarrierListener) -> None:
        """Set the callback for barriers that arrive.

        If `eager` is false, the callback receives only the barriers that end a log.
        """
        self._on_barrier = listener

    def put(self, element: Element) -> None:
        """Append an element to the channel, and to the open log if there is one."""
        if self._log is not None:
            self._log_element(self._log, element)
        super().put(element)
        if isinstance(element, Barrier):
            self._barrier_arrived(element)

    def take(self) -> Element:
        """Remove and return the first element. If it is logged, encode it first."""
        element = super().take()
        self._encode_before_change(element)
        return element

    def start_log(self, number: int, keep: bool = True) -> ChannelLog:
        """Start to log the elements that wait now or arrive before barrier `number`.

        Arguments:
            number: the number of the snapshot.
            keep: whether to store the records, and not only their number.
        """
        log = self._new_log(number, keep)
        if not self._log_queue(log):
            self._log = log
        return log

    def drop_log(self) -> None:
        """Stop logging; called when the barrier has arrived or the snapshot was aborted."""
        self._log = None

    def _new_log(self, number: int, keep: bool) -> ChannelLog:
        return ChannelLog(number, self.edge, self.id, self._encode_entry, keep)

    def _log_queue(self, log: ChannelLog) -> bool:
        """Add the elements in memory to a log, up to the barrier of its snapshot.

        Returns:
            Whether the queue contained the barrier, so that the log is complete.
        """
        for element in self._queue:
            if isinstance(element, Barrier) and element.number >= log.number:
                self._report_barrier(element)
                return True
            self._log_element(log, element)
        return False

    def _log_element(self, log: ChannelLog, element: Element) -> None:
        if isinstance(element, RecordBatch | EncodedBatch):
            self._add_to_log(log, element)
        elif isinstance(element, Watermark | WatermarkStatus) and log.keep:
            log.add(to_marker(element))

    def _add_to_log(self, log: ChannelLog, batch: RecordBatch | EncodedBatch) -> None:
        log.count(count_of(batch))
        if not log.keep:
            return
        # If the task is slow, the batch may also be part of the previous log.
        entry = self._entries.get(id(batch))
        if entry is None:
            entry = self._entries[id(batch)] = RecordedEntry(batch)
        log.add(entry)

    def _encode_entry(self, entry: RecordedEntry) -> None:
        if entry.payload is None:
            assert isinstance(entry.batch, RecordBatch)
            entry.payload = self._encode(entry.batch)

    def _encode_before_change(self, element: Element) -> None:
        """Encode an element if it is logged, since the task may change its records."""
        if self._entries and (entry := self._entries.pop(id(element), None)) is not None:
            self._encode_entry(entry)

    def _barrier_arrived(self, barrier: Barrier) -> None:
        if self._log is not None and barrier.number >= self._log.number:
            self.drop_log()
        elif not self._eager:
            return
        self._report_barrier(barrier)

    def _report_barrier(self, barrier: Barrier) -> None:
        if self._on_barrier is not None:
            self._on_barrier(self.id, barrier)
