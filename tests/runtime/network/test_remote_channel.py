"""A channel over a connection: batches, credits, and how the connection ends."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control.framing import Frames
from penstock.runtime.network.elements import Barrier, EndOfInput
from penstock.runtime.network.input_channel import FIRST_RECORDS, InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import (
    RemoteOutputChannel,
)
from penstock.runtime.network.remote_channel import (
    DataConnection,
    SendingHalf,
    decode_header,
    encode_header,
)
from penstock.runtime.task.batch_sizing import BatchSizer
from penstock.snapshot.protocols.events import SnapshotKind
from tests.runtime.network.channels import CODEC, Gated, shown

TOKEN = b"t" * 32
BATCH = b"\x00" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01payload"


def input_channel() -> tuple[InputGate, InputChannel]:
    """Return a gate and its only channel, which has four credits."""
    gate = InputGate(lambda: None, lambda: 0.0)
    return gate, gate.add(ChannelId(0, 1, 0), 4)


def socket_streams() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection of real sockets."""
    here, there = trio.socket.socketpair()
    return trio.SocketStream(here), trio.SocketStream(there)


async def connected(
    nursery: trio.Nursery, credits: int = 2
) -> tuple[SendingHalf, Gated, list[str], list[str]]:
    """Return both ends of a channel, which is the only one of its connection."""
    return await connected_by(nursery, *trio.testing.memory_stream_pair(), credits)


async def connected_by(
    nursery: trio.Nursery, here: trio.abc.Stream, there: trio.abc.Stream, credits: int
) -> tuple[SendingHalf, Gated, list[str], list[str]]:
    gated = Gated(1, capacity=credits)
    woken: list[str] = []
    lost: list[str] = []
    sender, receiver = DataConnection(), DataConnection()
    sending = sender.add_output(0, credits, lambda: woken.append("credit"))
    receiver.add_input(gated.channels[0])
    nursery.start_soon(sender.run, Frames(here), lost.append)
    nursery.start_soon(receiver.run, Frames(there), lost.append)
    await trio.testing.wait_all_tasks_blocked()
    return sending, gated, woken, lost


def receiver_of(channel: InputChannel) -> DataConnection:
    """Return the connection of a worker that only receives."""
    connection = DataConnection()
    connection.add_input(channel)
    return connection


def test_a_sender_that_dies_within_a_frame_has_broken_its_connection() -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        lost: list[str] = []
        connection = receiver_of(Gated(1).channels[0])
        await here.send_all(b"\x00\x00\x00\x09half")
        await here.aclose()
        await connection.run(Frames(there), lost.append)
        assert lost == ["a data connection broke: the connection ended within a frame"]

    trio.run(main)


def test_a_connection_carries_batches_and_markers_in_order() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, _, _ = await connected(nursery)
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 10, 1 << 20)
            output.buffer.extend([("a", 1), ("b", 2)])
            output.mark(Barrier(3, SnapshotKind.SAVEPOINT))
            output.buffer.append(("c", 3))
            output.mark(EndOfInput())
            output.mark(Barrier(4, SnapshotKind.FINAL))
            assert output.push()
            await trio.testing.wait_all_tasks_blocked()
            taken = []
            while (item := gated.gate.take()) is not None:
                taken.append(item[1])
            assert [shown(e) for e in taken] == [[("a", 1), ("b", 2)], 3, [("c", 3)], "end", 4]
            assert taken[1] == Barrier(3, SnapshotKind.SAVEPOINT)
            assert taken[4] == Barrier(4, SnapshotKind.FINAL)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_credits_come_back_over_a_connection_when_batches_are_taken() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, woken, _ = await connected(nursery)
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 1, 1 << 20)
            output.buffer.extend([1, 2, 3])
            output.seal()
            assert not output.push()
            await trio.testing.wait_all_tasks_blocked()
            assert (sending.credits, woken) == (0, [])
            gated.channels[0].limit_batches(17)
            assert [what for _, what in gated.drain()] == [[1], [2]]
            await trio.testing.wait_all_tasks_blocked()
            assert (sending.credits, sending.desired_records) == (2, 17)
            assert woken
            assert output.push()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_slow_task_has_fewer_batches_under_way() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, woken, _ = await connected(nursery, credits=4)
            (channel,) = gated.channels
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 1, 1 << 20)
            output.buffer.extend(range(6))
            output.seal()
            output.push()
            await trio.testing.wait_all_tasks_blocked()
            channel.limit_in_flight(FIRST_RECORDS, 1)
            for left in (3, 2, 1):
                gated.gate.take()
                await trio.testing.wait_all_tasks_blocked()
                assert (len(channel), sending.credits) == (left, 0)
            gated.gate.take()
            await trio.testing.wait_all_tasks_blocked()
            assert (len(channel), sending.credits, len(woken)) == (0, 1, 1)
            output.push()
            await trio.testing.wait_all_tasks_blocked()
            channel.limit_in_flight(FIRST_RECORDS, 4)
            gated.gate.take()
            await trio.testing.wait_all_tasks_blocked()
            assert sending.credits == 4
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_task_that_becomes_slow_is_followed_before_the_next_batch() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, _, _ = await connected(nursery, credits=4)
            (channel,) = gated.channels
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 100, 1 << 20)
            assert output.limit == FIRST_RECORDS
            sizer = BatchSizer()
            sizer.took(1, 2e-3)
            gated.gate.follow(sizer)
            await trio.testing.wait_all_tasks_blocked()
            assert (output.limit, sending.credits, channel.desired_records) == (1, 4, 1)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_loss_of_a_connection_is_told_and_a_cancel_is_not() -> None:
    async def main() -> list[str]:
        async with trio.open_nursery() as nursery:
            here, there = trio.testing.memory_stream_pair()
            _, _, _, lost = await connected_by(nursery, here, there, 2)
            await here.aclose()
        return lost

    assert len(trio.run(main)) == 2

    async def cancelled() -> list[str]:
        async with trio.open_nursery() as nursery:
            _, _, _, lost = await connected(nursery)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return lost

    assert trio.run(cancelled) == []


def test_frames_wait_for_their_connection() -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        gated = Gated(1)
        sender, receiver = DataConnection(), receiver_of(gated.channels[0])
        sending = sender.add_output(0, 2, lambda: None)
        for payload in ("first", "second"):
            sending.send_batch(CODEC.encode_batch([payload]), 1)
        sending.send_marker(EndOfInput())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run, Frames(here), str)
            nursery.start_soon(receiver.run, Frames(there), str)
            await trio.testing.wait_all_tasks_blocked()
            assert [what for _, what in gated.drain()] == [["first"], ["second"], "end"]
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_frame_of_an_unknown_channel_breaks_the_connection() -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        lost: list[str] = []
        sender = DataConnection()
        sender.add_output(4, 2, lambda: None).send_marker(EndOfInput())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run, Frames(here), str)
            await receiver_of(input_channel()[1]).run(Frames(there), lost.append)
            nursery.cancel_scope.cancel()
        (reason,) = lost
        assert "a frame of kind 2 for link 4, which is not here" in reason

    trio.run(main)


def test_the_header_of_a_connection_round_trips_and_rubbish_is_refused() -> None:
    assert decode_header(encode_header(7, 3)) == (7, 3)
    for rubbish in (b"", b"\x01", b"\xff" * 20):
        with pytest.raises(ProtocolError, match=r"[hH]eader"):
            decode_header(rubbish)


# ---- descriptors


def test_no_credit_is_written_after_its_connection_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = socket_streams()
        gate, channel = input_channel()
        lost: list[str] = []
        sender = Frames(here)
        for _ in range(4):
            await sender.send(BATCH)
        await sender.aclose()
        await receiver_of(channel).run(Frames(there), lost.append)
        assert lost == ["a data connection was closed by the other end"]
        number = there.socket.fileno()
        await there.aclose()
        with ExitStack() as stack:
            # One of these is given the number that the socket had.
            files = [(tmp_path / str(n)).open("wb", buffering=0) for n in range(4)]
            for file in files:
                stack.callback(file.close)
            assert number in [file.fileno() for file in files]
            while gate.take() is not None:
                pass
            assert [Path(file.name).read_bytes() for file in files] == [b""] * 4
        assert channel._on_credit is None

    trio.run(main)


def test_a_closed_connection_refuses_to_write(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = socket_streams()
        frames, number = Frames(here), here.socket.fileno()
        await frames.aclose()
        with (tmp_path / "file").open("wb", buffering=0) as file:
            assert file.fileno() == number
            with pytest.raises(OSError, match="descriptor"):
                frames.send_now(b"credit")
        assert (tmp_path / "file").read_bytes() == b""
        await there.aclose()

    trio.run(main)
