"""Channels between two workers: batches go one way, and credits go back.

One connection carries all channels between two workers, in both directions. So the connections of a
job grow with its pairs of workers, and not with its links. Each frame begins with its kind and the
link of its channel, which identifies the channel among those of one direction:

    sender   → receiver   BATCH · link · number of records · payload     needs a credit
                          BARRIER · link · number, kind, urgent
                          END · link
                          WATERMARK · link · time in milliseconds
                          STATUS · link · whether the channel is idle
                          PROBE · link · see `loop_probe.py`
                          STEPS · link · see `step_logs.py`
    receiver → sender     CREDIT · link · number of credits (0 or more), desired records in a batch,
                          window

A connection is read as fast as the other end writes, and never waits for a task. This is safe
because a sender needs a credit for each batch. So no channel waits for another one. No method that
sends a frame awaits. If the kernel does not accept a frame at once, `DataConnection.run` writes the
rest.
"""

from __future__ import annotations

import operator
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.packing import MAX_FRAME, build, malformed, pack, unpack
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

BATCH, BARRIER, END, CREDIT, WATERMARK, STATUS, PROBE, STEPS = range(8)
#: The kind of a frame, and the link of its channel.
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">I")
_TIME = struct.Struct(">q")
_BATCH_HEADER = _HEAD.size + _COUNT.size
#: The maximum size of an encoded batch, in bytes, so that it fits into a frame.
MAX_BATCH_BYTES = MAX_FRAME - _BATCH_HEADER
#: The maximum number of desired records that a CREDIT frame can contain.
_MAX_RECORDS = 1 << 30


@dataclass(frozen=True)
class ConnectionHeader:
    """The first frame of a data connection: the execution attempt and the worker that opens it."""

    attempt: int
    worker: int


def encode_header(attempt: int, worker: int) -> bytes:
    """Return the first frame of a data connection."""
    return pack([attempt, worker])


def decode_header(data: bytes) -> tuple[int, int]:
    """Return the execution attempt and the worker from a connection's first frame.

    Raises:
        ProtocolError: if the frame is malformed.
    """
    header = build(ConnectionHeader, unpack(data, "header of a data connection"))
    return header.attempt, header.worker


class _FrameWriter:
    """Writes frames in order. `run` writes the frames that the kernel does not accept at once.

    Frames that come before `run` wait for it.
    """

    def __init__(self) -> None:
        self._frames: Frames | None = None
        self._queue: deque[tuple[bytes, ...]] = deque()
        #: The rest of a frame that the kernel accepted only in part; None if there is no rest.
        self._rest: bytes | None = None
        self._signal = Signal()
        #: Whether the connection is broken or stopped. The reader of the connection reports this.
        self._broken = False

    def put(self, *parts: bytes) -> None:
        """Write the parts as one frame, or queue the frame behind the frames that wait."""
        if self._broken:
            return
        if self._frames is None or self._queue or self._rest is not None:
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

    async def run(self, frames: Frames) -> None:
        """Write the frames that could not be written at once, until cancelled."""
        self._frames = frames
        while True:
            if self._rest is not None:
                await frames.send_rest(self._rest)
                self._rest = None
            elif self._queue:
                self._rest = frames.send_now(*self._queue.popleft())
            else:
                await self._signal.wait()


def credit_group(window: int) -> int:
    """Return the number of credits that are returned together.

    They are half of the window, which needs fewer frames. Meanwhile the sender uses the other half.
    """
    return max(1, window // 2)


class SendingHalf:
    """The sender's end of a channel, which a `RemoteOutputChannel` uses as its `Sender`.

    Arguments:
        put: writes the parts of a frame.
        link: the link of the channel.
        credits: the number of batches that may be sent before the first credit returns.
        wake: a function that wakes the sending task. It is called when credits have returned.
    """

    def __init__(
        self, put: Callable[..., None], link: int, credits: int, wake: Callable[[], None]
    ) -> None:
        self.credits = credits
        #: The number of batches that the receiver wants in flight.
        self._window = credits
        #: The number of records that the receiver wants in a batch.
        self.desired_records = FIRST_RECORDS
        self._on_desired_records: Callable[[], None] | None = None
        self._put, self._link, self._wake = put, link, wake
        self._batch = _HEAD.pack(BATCH, link)

    @property
    def takes_partial(self) -> bool:
        """Return whether the receiver has taken all batches but those whose credits it keeps."""
        return self._window - self.credits < credit_group(self._window)

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Set a callback that runs when the receiver has sent `desired_records`."""
        self._on_desired_records = listener

    def send_batch(self, payload: bytes, count: int) -> None:
        """Send an encoded batch of `count` records, which uses one credit."""
        self.credits -= 1
        self._put(self._batch + _COUNT.pack(count), payload)

    def send_marker(self, element: Element) -> None:
        """Send a marker, such as a barrier."""
        if isinstance(element, Barrier):
            self._marker(BARRIER, pack([element.number, element.kind.value, element.urgent]))
        elif isinstance(element, Watermark):
            self._marker(WATERMARK, _TIME.pack(element.timestamp))
        elif isinstance(element, WatermarkStatus):
            self._marker(STATUS, bytes([element.idle]))
        elif isinstance(element, LoopProbe | ProbeRequest):
            self._marker(PROBE, pack_probe(element))
        else:
            self._marker(END, b"")

    def send_steps(self, data: bytes) -> None:
        """Send steps that the worker of the receiver does not know."""
        self._marker(STEPS, data)

    def _marker(self, kind: int, content: bytes) -> None:
        self._put(_HEAD.pack(kind, self._link) + content)

    def receive(self, content: bytes) -> None:
        """Take the credits of a CREDIT frame. Raise `ProtocolError` if it is malformed."""
        with malformed("credit"):
            count, desired, window = map(operator.index, unpack(content))
        self.credits += count
        self.desired_records, self._window = desired, window
        if self._on_desired_records is not None:
            self._on_desired_records()
        if count or self.takes_partial:
            self._wake()


class ReceivingHalf:
    """The receiver's end of a channel.

    Arguments:
        put: writes the parts of a frame.
        channel: the input channel, into which the received elements are put.
    """

    def __init__(self, put: Callable[..., None], channel: InputChannel) -> None:
        self._put, self._channel = put, channel
        self._head = _HEAD.pack(CREDIT, channel.id.link)
        #: The number of credits that must still be sent back for batches that the task took.
        self._owed = 0
        #: The values of `desired_records` and of the window that were sent to the sender last.
        self._sent_records = FIRST_RECORDS
        self._sent_window = channel.capacity
        channel.attach_sender(self._return_credit, self._request_smaller_batches)

    def stop(self) -> None:
        """Stop returning credits, because the connection has ended."""
        self._channel.detach_sender()

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
        self._put(self._head, pack([credits, self._sent_records, self._sent_window]))

    def receive(self, kind: int, frame: bytes) -> None:
        """Put the element of a frame into the channel.

        Raises:
            ProtocolError: if the frame is malformed or of an unknown kind, or the channel refuses
                it.
        """
        put, content = self._channel.put, _HEAD.size
        if kind == BATCH:
            if len(frame) < _BATCH_HEADER:
                raise ProtocolError(f"malformed batch: {frame!r}")
            (count,) = _COUNT.unpack_from(frame, content)
            put(EncodedBatch(memoryview(frame)[_BATCH_HEADER:], count))
        elif kind == BARRIER:
            put(_barrier(frame[content:]))
        elif kind == END:
            put(EndOfInput())
        elif kind == WATERMARK and len(frame) == content + _TIME.size:
            put(Watermark(*_TIME.unpack_from(frame, content)))
        elif kind == STATUS and len(frame) == content + 1:
            put(WatermarkStatus(bool(frame[content])))
        elif kind == PROBE:
            put(unpack_probe(frame[content:]))
        elif kind == STEPS:
            self._channel.learn_steps(frame[content:])
        else:
            raise ProtocolError(f"a receiver got a frame of kind {kind}")


def _barrier(data: bytes) -> Barrier:
    with malformed("barrier"):
        number, name, urgent = unpack(data)
        return Barrier(operator.index(number), SnapshotKind(name), bool(urgent))


class DataConnection:
    """The connection between two workers, and one end of each of their channels.

    Channels are added before the connection exists. Their first frames wait for `run`.
    """

    def __init__(self) -> None:
        self._senders: dict[int, SendingHalf] = {}
        self._receivers: dict[int, ReceivingHalf] = {}
        self._writer = _FrameWriter()
        self._scope = trio.CancelScope()

    def add_output(self, link: int, credits: int, wake: Callable[[], None]) -> SendingHalf:
        """Add a channel to the other worker. The arguments are those of `SendingHalf`."""
        half = self._senders[link] = SendingHalf(self._writer.put, link, credits, wake)
        return half

    def add_input(self, channel: InputChannel) -> None:
        """Add a channel from the other worker, into which received elements are put."""
        self._receivers[channel.id.link] = ReceivingHalf(self._writer.put, channel)

    async def run(self, frames: Frames, lost: Callable[[str], None]) -> None:
        """Carry the frames of all channels until the connection ends.

        Arguments:
            frames: an authenticated connection.
            lost: a function that is called with the reason when the connection ends, but not on
                cancellation.
        """
        reason = "a data connection was closed by the other end"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._writer.run, frames)
                    await self._read(frames)
                    nursery.cancel_scope.cancel()
        except* (
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            OSError,
            ProtocolError,
        ) as broken:
            reason = f"a data connection broke: {broken.exceptions[0]}"
        finally:
            self._stop()
        if self._scope.cancel_called:
            await trio.aclose_forcefully(frames.stream)
        else:
            lost(reason)

    def abandon(self) -> None:
        """Close the connection, because the other worker is replaced by another one.

        Its last frames are not read, and the channels can be added to another connection.
        """
        self._scope.cancel()
        self._stop()

    def _stop(self) -> None:
        self._writer.stop()
        for half in self._receivers.values():
            half.stop()
        self._receivers.clear()

    async def _read(self, frames: Frames) -> None:
        """Pass received frames to their channels until the other worker closes the connection.

        Raises:
            ProtocolError: if a frame is malformed, or no channel takes it.
        """
        receive, senders, receivers = frames.receive, self._senders, self._receivers
        while True:
            frame = await receive()
            if frame is None:
                return
            if len(frame) < _HEAD.size:
                raise ProtocolError(f"malformed frame: {frame!r}")
            kind, link = _HEAD.unpack_from(frame)
            if kind == CREDIT and link in senders:
                senders[link].receive(frame[_HEAD.size :])
            elif kind != CREDIT and link in receivers:
                receivers[link].receive(kind, frame)
            elif self._scope.cancel_called:
                return
            else:
                raise ProtocolError(f"a frame of kind {kind} for link {link}, which is not here")
