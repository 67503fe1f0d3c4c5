"""A channel between two processes: batches go one way, and credits go back.

One connection carries one channel. These are its frames:

    sender   → receiver   BATCH · number of records · payload     needs a credit
                          BARRIER · number, kind, urgent
                          END
                          WATERMARK · time in milliseconds
                          STATUS · whether the channel is idle
                          PROBE · see `loop_probe.py`
    receiver → sender     CREDIT · number of credits (0 or more), desired records in a batch, window

The receiving half reads as fast as the sender sends, and never waits for its task. This is safe
because the sender needs a credit for each batch. No method that sends a frame awaits. If the kernel
does not accept a frame at once, the trio task `run` of the connection writes the rest.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.control.framing import MAX_FRAME, Frames
from penstock.runtime.control.packing import build, malformed, pack, unpack
from penstock.runtime.network.elements import (
    Barrier,
    Element,
    EncodedBatch,
    EndOfInput,
    WatermarkStatus,
)
from penstock.runtime.network.input_channel import FIRST_RECORDS, InputChannel
from penstock.runtime.network.loop_probe import (
    LoopProbe,
    ProbeRequest,
    pack_probe,
    unpack_probe,
)
from penstock.runtime.system.signal import Signal
from penstock.snapshot.protocols.events import SnapshotKind

BATCH, BARRIER, END, CREDIT = b"\x00", b"\x01", b"\x02", b"\x03"
WATERMARK, STATUS, PROBE = b"\x04", b"\x05", b"\x06"
_COUNT = struct.Struct(">I")
_TIME = struct.Struct(">q")
_BATCH_HEADER = len(BATCH) + _COUNT.size
#: The maximum size of an encoded batch, in bytes, so that it fits into a frame.
MAX_BATCH_BYTES = MAX_FRAME - _BATCH_HEADER
#: The maximum number of desired records that a CREDIT frame can contain.
_MAX_RECORDS = 1 << 30


@dataclass(frozen=True)
class ConnectionHeader:
    """The first frame of a data connection: the execution attempt and the channel."""

    attempt: int
    link: int
    source: int
    target: int


def encode_header(attempt: int, channel: ChannelId) -> bytes:
    """Return the first frame of a data connection."""
    return pack([attempt, channel.link, channel.source, channel.target])


def decode_header(data: bytes) -> tuple[int, ChannelId]:
    """Return the execution attempt and the channel from a connection's first frame.

    Raises:
        ProtocolError: if the frame is malformed.
    """
    header = build(ConnectionHeader, unpack(data, "header of a data connection"))
    return header.attempt, ChannelId(header.link, header.source, header.target)


class _FrameWriter:
    """Writes frames in order. `run` writes the frames that the kernel does not accept at once."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._queue: list[tuple[bytes, ...]] = []
        #: The rest of a frame that the kernel accepted only in part; None if there is no rest.
        self._rest: bytes | None = None
        self._signal = Signal()
        #: Whether the connection is broken or stopped. The reader of the connection reports this.
        self._broken = False

    def put(self, *parts: bytes) -> None:
        """Write the parts as one frame, or queue the frame behind the frames that wait."""
        if self._broken:
            return
        if self._queue or self._rest is not None:
            self._queue.append(parts)
            return
        try:
            self._rest = self._frames.send_now(*parts)
        except OSError:
            self._broken = True
        if self._rest is not None:
            self._signal.set()

    def stop(self) -> None:
        """Discard the queued frames, and ignore all later frames."""
        self._broken = True
        self._queue.clear()

    async def run(self) -> None:
        """Write the frames that could not be written at once, until cancelled."""
        while True:
            while self._rest is not None:
                await self._frames.send_rest(self._rest)
                self._rest = None
                while self._queue and self._rest is None:
                    self._rest = self._frames.send_now(*self._queue.pop(0))
            await self._signal.wait()


def credit_group(window: int) -> int:
    """Return the number of credits that are returned together.

    They are half of the window, which needs fewer frames. Meanwhile the sender uses the other half.
    """
    return max(1, window // 2)


class SendingHalf:
    """The sender's end of a connection, which a `RemoteOutputChannel` uses as its `Sender`.

    Arguments:
        frames: an authenticated connection.
        credits: the number of batches that may be sent before the first credit returns.
        wake: a function that wakes the sending task. It is called when credits have returned.
    """

    def __init__(self, frames: Frames, credits: int, wake: Callable[[], None]) -> None:
        self.credits = credits
        #: The number of batches that the receiver wants in flight.
        self._window = credits
        #: The number of records that the receiver wants in a batch.
        self.desired_records = FIRST_RECORDS
        self._on_desired_records: Callable[[], None] | None = None
        self._frames = frames
        self._wake = wake
        self._writer = _FrameWriter(frames)
        self.write = self._writer.run

    @property
    def takes_partial(self) -> bool:
        """Return whether the receiver has taken all batches but those whose credits it keeps."""
        return self._window - self.credits < credit_group(self._window)

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Set a callback that runs when the receiver has sent `desired_records`."""
        self._on_desired_records = listener

    def stop(self) -> None:
        """Stop sending, because the connection has ended."""
        self._writer.stop()

    def send_batch(self, payload: bytes, count: int) -> None:
        """Send an encoded batch of `count` records, which uses one credit."""
        self.credits -= 1
        self._writer.put(BATCH + _COUNT.pack(count), payload)

    def send_marker(self, element: Element) -> None:
        """Send a marker, such as a barrier."""
        if isinstance(element, Barrier):
            self._writer.put(BARRIER, self._packed(element))
        elif isinstance(element, Watermark):
            self._writer.put(WATERMARK + _TIME.pack(element.timestamp))
        elif isinstance(element, WatermarkStatus):
            self._writer.put(STATUS + bytes([element.idle]))
        elif isinstance(element, LoopProbe | ProbeRequest):
            self._writer.put(PROBE + pack_probe(element))
        else:
            self._writer.put(END)

    @staticmethod
    def _packed(barrier: Barrier) -> bytes:
        return pack([barrier.number, barrier.kind.value, barrier.urgent])

    async def read(self) -> None:
        """Receive credits until the receiver closes the connection.

        Raises:
            ProtocolError: if a frame is malformed, or is not a CREDIT frame.
        """
        while True:
            frame = await self._frames.receive()
            if frame is None:
                return
            if frame[:1] != CREDIT:
                raise ProtocolError(f"a sender received frame kind {frame[:1]!r}")
            with malformed("credit"):
                count, desired, window = map(operator.index, unpack(frame[1:]))
            self.credits += count
            self.desired_records, self._window = desired, window
            if self._on_desired_records is not None:
                self._on_desired_records()
            if count or self.takes_partial:
                self._wake()


class ReceivingHalf:
    """The receiver's end of a connection.

    Arguments:
        frames: an authenticated connection.
        channel: the input channel, into which the received elements are put.
    """

    def __init__(self, frames: Frames, channel: InputChannel) -> None:
        self._frames = frames
        self._channel = channel
        #: The number of credits that must still be sent back for batches that the task took.
        self._owed = 0
        #: The values of `desired_records` and of the window that were sent to the sender last.
        self._sent_records = FIRST_RECORDS
        self._sent_window = channel.capacity
        self._writer = _FrameWriter(frames)
        self.write = self._writer.run
        channel.attach_sender(self._return_credit, self._request_smaller_batches)

    def stop(self) -> None:
        """Stop returning credits, because the connection has ended."""
        self._channel.detach_sender()
        self._writer.stop()

    def _return_credit(self) -> None:
        self._owed += 1
        window = self._window()
        free = self._owed - (self._channel.capacity - window)
        if free >= credit_group(window):
            self._owed -= free
            self._send_credits(free)

    def _window(self) -> int:
        return min(self._channel.window, self._channel.capacity)

    def _request_smaller_batches(self) -> None:
        """Send `desired_records` at once if it is at most half of the value sent last.

        A smaller window is also sent at once. Otherwise the sender would expect credits that do not
        return.
        """
        smaller = self._channel.desired_records <= self._sent_records // 2
        if smaller or self._window() < self._sent_window:
            self._send_credits(0)

    def _send_credits(self, credits: int) -> None:
        self._sent_records = min(self._channel.desired_records, _MAX_RECORDS)
        self._sent_window = self._window()
        self._writer.put(CREDIT, pack([credits, self._sent_records, self._sent_window]))

    async def read(self) -> None:
        """Put received elements into the channel until the sender closes the connection.

        Raises:
            ProtocolError: if a frame is malformed or of an unknown kind, or the channel refuses it.
        """
        receive, put = self._frames.receive, self._channel.put
        while True:
            frame = await receive()
            if frame is None:
                return
            kind = frame[:1]
            if kind == BATCH:
                if len(frame) < _BATCH_HEADER:
                    raise ProtocolError(f"malformed batch: {frame!r}")
                (count,) = _COUNT.unpack_from(frame, len(BATCH))
                put(EncodedBatch(memoryview(frame)[_BATCH_HEADER:], count))
            elif kind == BARRIER:
                put(_barrier(frame[1:]))
            elif kind == END:
                put(EndOfInput())
            elif kind == WATERMARK and len(frame) == 1 + _TIME.size:
                put(Watermark(*_TIME.unpack_from(frame, 1)))
            elif kind == STATUS and len(frame) == 2:
                put(WatermarkStatus(bool(frame[1])))
            elif kind == PROBE:
                put(unpack_probe(frame[1:]))
            else:
                raise ProtocolError(f"a receiver got frame kind {kind!r}")


def _barrier(data: bytes) -> Barrier:
    with malformed("barrier"):
        number, name, urgent = unpack(data)
        return Barrier(operator.index(number), SnapshotKind(name), bool(urgent))


async def run_half(half: SendingHalf | ReceivingHalf, lost: Callable[[str], None]) -> None:
    """Run one half of a connection until the connection ends.

    Arguments:
        half: one end of a connection.
        lost: a function that is called with the reason when the connection ends, but not on
            cancellation.
    """
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(half.write)
            await half.read()
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError, ProtocolError) as broken:
        lost(f"a data connection broke: {broken.exceptions[0]}")
    else:
        lost("a data connection was closed by the other end")
    finally:
        half.stop()
