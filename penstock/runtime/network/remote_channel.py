"""A channel between two processes: one connection, batches one way and credits back.

    sender   → receiver   BATCH · number of records · payload     needs a credit
                          BARRIER · number, kind, urgent
                          END
    receiver → sender     CREDIT · count (0 or more), records wanted in a batch

The receiving half reads as fast as the other end sends and never waits for its task: a sender
sends no more than it has credits for. Frames are handed over without awaiting; a small task per
half moves them.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.compile import ChannelId
from penstock.runtime.control.framing import MAX_FRAME, Frames
from penstock.runtime.control.packing import build, malformed, pack, unpack
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.input_channel import FIRST_RECORDS, InputChannel
from penstock.runtime.system.system import Signal
from penstock.snapshot.protocols.events import SnapshotKind

__all__ = ["ReceivingHalf", "SendingHalf", "decode_header", "encode_header"]

BATCH, BARRIER, END, CREDIT = b"\x00", b"\x01", b"\x02", b"\x03"
_COUNT = struct.Struct(">I")
_BATCH_HEADER = len(BATCH) + _COUNT.size
#: The largest batch that fits into a frame.
MAX_BATCH_BYTES = MAX_FRAME - _BATCH_HEADER
#: The largest number of records that a CREDIT frame names.
_ANY = 1 << 30


@dataclass(frozen=True)
class ConnectionHeader:
    """The first frame of a data connection: its execution attempt and its channel."""

    attempt: int
    link: int
    source: int
    target: int


def encode_header(attempt: int, channel: ChannelId) -> bytes:
    """The first frame of a data connection."""
    return pack([attempt, channel.link, channel.source, channel.target])


def decode_header(data: bytes) -> tuple[int, ChannelId]:
    """Attempt and channel of a data connection. Raises `ProtocolError`."""
    header = build(ConnectionHeader, unpack(data, "header of a data connection"))
    return header.attempt, ChannelId(header.link, header.source, header.target)


class _Writer:
    """Writes frames in order: at once if the kernel takes them, else by a task of its own."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._queue: list[tuple[bytes, ...]] = []
        self._rest: bytes | None = None
        self._signal = Signal()
        #: Set when the other end has gone, which the reading task reports.
        self._broken = False

    def put(self, *parts: bytes) -> None:
        """Write a frame, or queue it behind those that wait."""
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
        """Drop what waits, and write nothing more."""
        self._broken = True
        self._queue.clear()

    async def run(self) -> None:
        """Write what could not be written at once, for ever."""
        while True:
            while self._rest is not None:
                await self._frames.send_rest(self._rest)
                self._rest = None
                while self._queue and self._rest is None:
                    self._rest = self._frames.send_now(*self._queue.pop(0))
            await self._signal.wait()


class SendingHalf:
    """The sender's end; a `Sender` for a `RemoteOutputChannel`.

    Arguments:
        frames: an authenticated connection.
        credits: batches that may be under way.
        wake: called when credits came back.
    """

    def __init__(self, frames: Frames, credits: int, wake: Callable[[], None]) -> None:
        self.credits = credits
        #: As of a channel.
        self.desired_records = FIRST_RECORDS
        self.on_pace: Callable[[], None] | None = None
        self._frames = frames
        self._wake = wake
        self._writer = _Writer(frames)
        self.write = self._writer.run

    def stop(self) -> None:
        """Send nothing more: the connection has ended."""
        self._writer.stop()

    def send_batch(self, payload: bytes, count: int) -> None:
        """Send a batch of so many records; the caller has taken a credit."""
        self._writer.put(BATCH + _COUNT.pack(count), payload)

    def send_marker(self, element: Element) -> None:
        """Send a barrier or the end of input."""
        if isinstance(element, Barrier):
            self._writer.put(BARRIER, self._packed(element))
        else:
            self._writer.put(END)

    @staticmethod
    def _packed(barrier: Barrier) -> bytes:
        return pack([barrier.number, barrier.kind.value, barrier.urgent])

    async def read(self) -> None:
        """Take credits until the other end closes."""
        while True:
            frame = await self._frames.receive()
            if frame is None:
                return
            if frame[:1] != CREDIT:
                raise ProtocolError(f"a sender received frame kind {frame[:1]!r}")
            with malformed("credit"):
                count, desired = map(operator.index, unpack(frame[1:]))
            self.credits += count
            self.desired_records = desired
            if self.on_pace is not None:
                self.on_pace()
            if count:
                self._wake()


class ReceivingHalf:
    """The receiver's end of a connection.

    Arguments:
        frames: an authenticated connection.
        channel: where the elements go.
    """

    def __init__(self, frames: Frames, channel: InputChannel) -> None:
        self._frames = frames
        self._channel = channel
        #: Batches that were taken and for which no credit went back.
        self._owed = 0
        #: The number of records in a batch that the sender was told last.
        self._told = FIRST_RECORDS
        self._writer = _Writer(frames)
        self.write = self._writer.run
        channel.on_credit = self._give
        channel.on_slower = self._slow_down

    def stop(self) -> None:
        """Return no more credits: the connection has ended."""
        self._channel.on_credit = self._channel.on_slower = None
        self._writer.stop()

    def _give(self) -> None:
        self._owed += 1
        capacity = self._channel.capacity
        window = min(self._channel.window, capacity)
        free = self._owed - (capacity - window)
        # Half of the credits at a time: a sender never runs dry, and half of the frames are saved.
        if free >= max(1, window // 2):
            self._owed -= free
            self._send(free)

    def _slow_down(self) -> None:
        """Tell the sender that batches are to be much smaller, before it sends the next."""
        if self._channel.desired_records <= self._told // 2:
            self._send(0)

    def _send(self, credits: int) -> None:
        self._told = min(self._channel.desired_records, _ANY)
        self._writer.put(CREDIT, pack([credits, self._told]))

    async def read(self) -> None:
        """Put what arrives into the channel until the other end closes."""
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
            else:
                raise ProtocolError(f"a receiver got frame kind {kind!r}")


def _barrier(data: bytes) -> Barrier:
    with malformed("barrier"):
        number, name, urgent = unpack(data)
        return Barrier(operator.index(number), SnapshotKind(name), bool(urgent))


async def run_half(half: SendingHalf | ReceivingHalf, lost: Callable[[str], None]) -> None:
    """Run one half until its connection ends; `lost` is told how, unless it was cancelled."""
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
