"""The receiving end of a back-edge: a channel whose sender never waits for the task.

With a bounded back-edge, the tasks of a cycle could all wait for each other. For that reason this
channel is unbounded: it keeps elements in memory up to a limit, and further elements on disk. The
channel returns a credit when a batch *arrives*. The sender waits only until the receiving process
has read the socket.

For a snapshot the channel is logged (Algorithm 2, ABS section 4.3). The log contains the elements
that wait in the channel when the snapshot is taken, and the elements that arrive before the
barrier. The task processes these elements meanwhile. So a snapshot does not wait until the loop is
empty. Elements on disk are not written a second time: the log holds their segments until these are
linked into the snapshot.

`docs/inside/decisions/018-feedback-credits.md` has the reasons and the figures.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.channel_log import ChannelLog, EdgeIdentity, Encode, RecordedEntry
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    EndOfInput,
    WatermarkStatus,
    count_of,
)
from penstock.runtime.network.input_channel import ChannelListener
from penstock.runtime.network.loop_probe import (
    LoopProbe,
    ProbeRequest,
    pack_probe,
    unpack_probe,
)
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.network.spill_queue import Hold, Mark, SpillQueue
from penstock.runtime.network.time_elements import to_marker, to_time_element
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage import in_flight_log as format

UNBOUNDED = 1 << 30
#: The assumed size of a record in memory, in bytes, before any records were encoded.
_RECORD_BYTES = 64
#: The assumed size of a record in memory, divided by its encoded size. An exact measurement would
#: be slow.
_MEMORY_FACTOR = 4


class FeedbackChannel(RecordedChannel):
    """One feedback channel of a task.

    Arguments:
        id, listener, clock, edge, eager: see `RecordedChannel`.
        capacity: the maximum number of batches that a sender in another process has in flight.
        encode: a function that returns the bytes of a batch, for the log and the disk.
        folder: the folder for elements on disk. It is created when the first element is written.
        memory_bytes: the approximate maximum size of the elements in memory.
    """

    is_feedback = True

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
        folder: Path,
        memory_bytes: int,
    ) -> None:
        super().__init__(id, listener, capacity, clock, edge=edge, encode=encode, eager=eager)
        self._memory_bytes = memory_bytes
        self._spill = SpillQueue(folder)
        #: The sizes of the elements in memory, in bytes; `_used_bytes` is their sum.
        self._sizes: deque[int] = deque()
        self._used_bytes = 0
        self._record_bytes: float = _RECORD_BYTES
        self._records_in_memory = 0
        #: The barriers that are on disk only, with their positions in the spill queue.
        self._spilled_barriers: deque[tuple[Barrier, Mark]] = deque()
        #: The range on disk that belongs to the open log, or None if the log has no range on disk.
        self._hold: Hold | None = None
        #: The largest number of bytes that were on disk at one time.
        self.spilled_peak = 0

    def __len__(self) -> int:
        return len(self._queue) + self._spill.frames

    @property
    def room(self) -> int:
        """Return a very large number, because the channel is unbounded."""
        return UNBOUNDED

    @property
    def queued_records(self) -> int:
        """Return the number of records that wait, in memory and on disk."""
        return self._records_in_memory + self._spill.records

    @property
    def spilled_bytes(self) -> int:
        """Return the number of bytes that wait on disk."""
        return self._spill.bytes

    def put(self, element: Element) -> None:
        """Append an element to the channel, in memory or on disk.

        Raises:
            ProtocolError: if a batch or a second end of input follows the end of input.
            StoreError: if the element cannot be written to disk.
        """
        if self.ended and not isinstance(element, Barrier):
            raise self._after_end(element)
        first = not len(self)
        if isinstance(element, EndOfInput):
            self.ended = True
        elif isinstance(element, Barrier):
            self._listener.on_barrier_queued()
        self._add(element)
        if self._on_credit is not None and isinstance(element, RecordBatch | EncodedBatch):
            self._on_credit()
        if first and not self.blocked:
            self._listener.on_ready(self)
        if isinstance(element, Barrier):
            self._barrier_arrived(element)

    def take(self) -> Element:
        """Remove and return the first element.

        Raises:
            ProtocolError: if the channel is blocked or empty.
        """
        if self.blocked or not len(self):
            raise ProtocolError(f"nothing to take from {self.id} (blocked: {self.blocked})")
        if not self._queue:
            self._read_back()
        element = self._queue.popleft()
        self._used_bytes -= self._sizes.popleft()
        if isinstance(element, RecordBatch | EncodedBatch):
            self._records_in_memory -= count_of(element)
            self._encode_before_change(element)
        elif isinstance(element, Barrier):
            self._listener.on_barrier_taken()
        return element

    # ---- methods that use the queue

    def _add(self, element: Element) -> None:
        size = self._size(element)
        full = self._used_bytes + size > self._memory_bytes and self._queue
        if self._spill.frames or full:
            self._write(element)
        else:
            self._keep_in_memory(element, size)
            if self._log is not None and not isinstance(element, Barrier | EndOfInput):
                self._end_hold()
                self._log_element(self._log, element)

    def _size(self, element: Element) -> int:
        if isinstance(element, EncodedBatch):
            return len(element.payload)
        return int(len(element) * self._record_bytes) if isinstance(element, RecordBatch) else 0

    def _keep_in_memory(self, element: Element, size: int) -> None:
        self._queue.append(element)
        self._sizes.append(size)
        self._used_bytes += size
        if isinstance(element, RecordBatch | EncodedBatch):
            self._records_in_memory += count_of(element)

    def _write(self, element: Element) -> None:
        kind, payload, count = self._as_frame(element)
        if self._log is not None and self._log.keep and self._hold is None:
            self._hold = self._spill.hold()
            self._log.add(self._hold)
        if isinstance(element, Barrier):
            self._spilled_barriers.append((element, self._spill.mark()))
        try:
            self._spill.append(kind, payload, count)
        except OSError as error:
            raise self._disk_error(error) from error
        if self._log is not None:
            self._log.count(count)
        self.spilled_peak = max(self.spilled_peak, self._spill.bytes)

    def _disk_error(self, error: OSError) -> StoreError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return StoreError(
            f"the loop {self.edge.name} has more records in flight than fit into memory, and "
            f"they cannot be written to disk ({error}); its queue has {self.queued_records} "
            f"records, {self.spilled_bytes} bytes of them on disk. "
            + ("Free some space, or give" if full else "Check the folder, or give")
            + " the job more memory (env.set_memory), and resume it from its last snapshot",
            str(self._spill.folder),
        )

    def _as_frame(self, element: Element) -> tuple[int, bytes | memoryview, int]:
        if isinstance(element, EncodedBatch):
            return format.BATCH, element.payload, element.count
        if isinstance(element, RecordBatch):
            payload = self._encode(element)
            self._learn_size(payload, len(element))
            return format.BATCH, payload, len(element)
        if isinstance(element, Barrier):
            return format.BARRIER, f"{element.number} {element.kind.value}".encode(), 0
        if isinstance(element, Watermark | WatermarkStatus):
            marker = to_marker(element)
            return marker.kind, marker.payload, 0
        if isinstance(element, LoopProbe | ProbeRequest):
            return format.PROBE, pack_probe(element), 0
        return format.END, b"", 0

    def _learn_size(self, payload: bytes, count: int) -> None:
        self._record_bytes = _MEMORY_FACTOR * len(payload) / max(1, count)

    def _read_back(self) -> None:
        """Read the first elements on disk into memory, up to a quarter of `memory_bytes`."""
        for kind, payload, count in self._spill.read(max(1, self._memory_bytes // 4)):
            element: Element
            if kind == format.BATCH:
                element = EncodedBatch(payload, count)
            elif kind == format.BARRIER:
                number, _, name = payload.decode().partition(" ")
                element = Barrier(int(number), SnapshotKind(name))
                self._spilled_barriers.popleft()
            elif kind in (format.WATERMARK, format.STATUS):
                element = to_time_element(kind, payload)
            elif kind == format.PROBE:
                element = unpack_probe(payload)
            else:
                element = EndOfInput()
            self._keep_in_memory(element, self._size(element))

    def close(self) -> None:
        """Close the files of the spill queue."""
        self._spill.close()

    # ---- methods that use the log

    def start_log(self, number: int, keep: bool = True) -> ChannelLog:
        """Start to log the elements that wait now or arrive before barrier `number`.

        Arguments:
            number: the number of the snapshot.
            keep: whether to store the records, and not only their number.
        """
        log = self._new_log(number, keep)
        if self._log_queue(log):
            return log
        for found, mark in self._spilled_barriers:
            if found.number >= number:
                self._log_spilled(log, mark)
                self._report_barrier(found)
                return log
        if self._spill.frames:
            self._log_spilled(log, None)
        self._log = log
        return log

    def _log_spilled(self, log: ChannelLog, until: Mark | None) -> None:
        hold = self._spill.hold(until)
        log.count(hold.records)
        if not log.keep:
            hold.release()
            return
        log.add(hold)
        if until is None:
            self._hold = hold

    def drop_log(self) -> None:
        """End the log, because the barrier has arrived or the snapshot was aborted."""
        self._end_hold()
        super().drop_log()

    def _end_hold(self) -> None:
        if self._hold is not None:
            self._spill.end_hold(self._hold)
            self._hold = None

    def _encode_entry(self, entry: RecordedEntry) -> None:
        fresh = entry.payload is None
        super()._encode_entry(entry)
        if fresh and entry.payload is not None:
            self._learn_size(entry.payload, count_of(entry.batch))
