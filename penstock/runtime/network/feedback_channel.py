"""The receiving end of a back-edge: a channel that never makes its sender wait for its task.

A bounded back-edge could close a circle of tasks that wait for each other, so this channel is
unbounded: in memory up to a budget, and beyond it in order on disk. Credits go back when a batch
*arrives*, so a sender waits for the other process to read its socket and never for the task.

For a snapshot the channel is logged (Algorithm 2, ABS section 4.3): what waits in it at the cut,
and what arrives until the barrier does. The log is taken on arrival, so that a snapshot does not
wait until the loop has drained; records are processed meanwhile. What lies on disk is not
written a second time: the log holds its segments until they are linked into the snapshot.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.dataflow.graph.compile import ChannelId
from penstock.runtime.network.elements import (
    Barrier,
    Batch,
    Element,
    EncodedBatch,
    EndOfInput,
    count_of,
)
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.recorded_channel import (
    ChannelLog,
    EdgeIdentity,
    Encode,
    RecordedChannel,
    RecordedEntry,
)
from penstock.runtime.network.spill_queue import Hold, Mark, SpillQueue
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage import in_flight_log as format

__all__ = ["FeedbackChannel"]

UNBOUNDED = 1 << 30
#: What is assumed of records in memory until the first were encoded.
_RECORD_BYTES = 64


class FeedbackChannel(RecordedChannel):
    """One back-edge channel of a task.

    Arguments:
        id, gate, clock, edge, eager: as of a `RecordedChannel`.
        capacity: batches that a sender in another process may have under way to here.
        encode: makes bytes of records; for the log and the disk.
        folder: where it may spill; made when it does.
        memory_bytes: what it may hold in memory, roughly.
    """

    is_feedback = True

    def __init__(
        self,
        id: ChannelId,
        gate: InputGate,
        capacity: int,
        clock: Callable[[], float],
        *,
        edge: EdgeIdentity,
        encode: Encode,
        eager: bool = False,
        folder: Path,
        memory_bytes: int,
    ) -> None:
        super().__init__(id, gate, capacity, clock, edge=edge, encode=encode, eager=eager)
        self._memory = memory_bytes
        self._spill = SpillQueue(folder)
        self._sizes: deque[int] = deque()
        self._held = 0
        self._record_bytes: float = _RECORD_BYTES
        self._records_queued = 0
        #: Barriers on disk that are not read back yet, with their places.
        self._spilled_barriers: deque[tuple[Barrier, Mark]] = deque()
        self._hold: Hold | None = None
        #: The most that was ever on disk, in bytes.
        self.spilled_peak = 0

    def __len__(self) -> int:
        return len(self._queue) + self._spill.frames

    @property
    def room(self) -> int:
        """Without bound."""
        return UNBOUNDED

    @property
    def queued_records(self) -> int:
        """Records that wait, in memory and on disk."""
        return self._records_queued + self._spill.records

    @property
    def spilled_bytes(self) -> int:
        """Bytes that wait on disk."""
        return self._spill.bytes

    def put(self, element: Element) -> None:
        """Add an element at the end. Raises `StoreError` if the disk does not take it."""
        first = not len(self)
        if isinstance(element, Batch | EncodedBatch):
            if self.ended:
                raise ProtocolError(f"batch after the end of input on {self.id}")
            if isinstance(element, EncodedBatch):
                self._bytes += len(element.payload)
            self._add(element)
            if self.on_credit is not None:
                self.on_credit()
        else:
            if isinstance(element, EndOfInput):
                if self.ended:
                    raise ProtocolError(f"second end of input on {self.id}")
                self.ended = True
            else:
                self._gate.barriers += 1
            self._add(element)
        if first and not self.blocked:
            self._gate.on_ready(self)
        if isinstance(element, Barrier):
            self._arrived(element)

    def take(self) -> Element:
        """Remove the first element; for the gate. Raises `ProtocolError` if blocked or empty."""
        if self.blocked or not len(self):
            raise ProtocolError(f"nothing to take from {self.id} (blocked: {self.blocked})")
        if not self._queue:
            self._read_back()
        element = self._queue.popleft()
        self._held -= self._sizes.popleft()
        if isinstance(element, Batch | EncodedBatch):
            count = count_of(element)
            self._batches += 1
            self._records += count
            self._records_queued -= count
            self._settle(element)
        elif isinstance(element, Barrier):
            self._gate.barriers -= 1
        return element

    # ---- the queue

    def _add(self, element: Element) -> None:
        size = self._size(element)
        if self._spill.frames or (self._held + size > self._memory and self._queue):
            self._write(element)
        else:
            self._remember(element, size)
            if self._log is not None and isinstance(element, Batch | EncodedBatch):
                self._end_hold()
                self._log_entry(self._log, element)

    def _size(self, element: Element) -> int:
        if isinstance(element, EncodedBatch):
            return len(element.payload)
        return int(len(element.records) * self._record_bytes) if isinstance(element, Batch) else 0

    def _remember(self, element: Element, size: int) -> None:
        self._queue.append(element)
        self._sizes.append(size)
        self._held += size
        if isinstance(element, Batch | EncodedBatch):
            self._records_queued += count_of(element)

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
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StoreError(
                f"the loop {self.edge.name} has more records in flight than fit into memory, and "
                f"they cannot be written to disk ({error}); its queue has {self.queued_records} "
                f"records, {self.spilled_bytes} bytes of them on disk. "
                + ("Free some space, or give" if full else "Check the folder, or give")
                + " the job more memory (env.set_memory), and resume it from its last snapshot",
                str(self._spill.folder),
            ) from error
        if self._log is not None:
            self._log.records += count
        self.spilled_peak = max(self.spilled_peak, self._spill.bytes)

    def _as_frame(self, element: Element) -> tuple[int, bytes | memoryview, int]:
        if isinstance(element, EncodedBatch):
            return format.BATCH, element.payload, element.count
        if isinstance(element, Batch):
            payload = self._encode(element.records)
            self._learn(payload, len(element.records))
            return format.BATCH, payload, len(element.records)
        if isinstance(element, Barrier):
            return format.BARRIER, f"{element.number} {element.kind.value}".encode(), 0
        return format.END, b"", 0

    def _learn(self, payload: bytes, count: int) -> None:
        # Objects in memory are larger than their bytes; by how much cannot be known cheaply.
        self._record_bytes = 4 * len(payload) / max(1, count)

    def _read_back(self) -> None:
        """Bring the head of what is on disk into memory."""
        for kind, payload, count in self._spill.read(max(1, self._memory // 4)):
            element: Element
            if kind == format.BATCH:
                element = EncodedBatch(payload, count)
            elif kind == format.BARRIER:
                number, _, name = payload.decode().partition(" ")
                element = Barrier(int(number), SnapshotKind(name))
                self._spilled_barriers.popleft()
            else:
                element = EndOfInput()
            self._remember(element, self._size(element))

    # ---- the log

    def start_log(self, number: int, keep: bool = True) -> ChannelLog:
        """Log what waits here and what arrives before barrier `number` does."""
        log = ChannelLog(number, self, keep)
        if self._log_queue(log):
            return log
        for found, mark in self._spilled_barriers:
            if found.number >= number:
                self._log_spilled(log, mark)
                self._announce(found)
                return log
        if self._spill.frames:
            self._log_spilled(log, None)
        self._log = log
        return log

    def _log_spilled(self, log: ChannelLog, until: Mark | None) -> None:
        hold = self._spill.hold(until)
        log.records += hold.records
        if not log.keep:
            hold.release()
            return
        log.add(hold)
        if until is None:
            self._hold = hold

    def drop_log(self) -> None:
        """Log no more: the barrier is here, or the snapshot was given up."""
        self._end_hold()
        super().drop_log()

    def _end_hold(self) -> None:
        if self._hold is not None:
            self._spill.end_hold(self._hold)
            self._hold = None

    def encode_entry(self, entry: RecordedEntry) -> None:
        """Make the bytes of a logged batch, if nobody has yet."""
        fresh = entry.payload is None
        super().encode_entry(entry)
        if fresh and entry.payload is not None:
            self._learn(entry.payload, count_of(entry.batch))

    def close(self) -> None:
        """Close what is open on disk."""
        self._spill.close()
