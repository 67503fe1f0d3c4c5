"""Connections that end, break or carry nonsense, and what they must not touch."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from penstock.dataflow.compile import ChannelId
from penstock.runtime.channel import Channel
from penstock.runtime.connection import ReceivingHalf, run_half
from penstock.runtime.control.wire import Frames
from penstock.runtime.gate import InputGate

BATCH = b"\x00\x00\x00\x00\x01payload"


def input_channel() -> tuple[InputGate, Channel]:
    """Return a gate and its only channel, which has four credits."""
    gate = InputGate(lambda: None, lambda: 0.0)
    return gate, gate.add(ChannelId(0, 1, 0), 4)


def socket_streams() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection of real sockets."""
    here, there = trio.socket.socketpair()
    return trio.SocketStream(here), trio.SocketStream(there)


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
        await run_half(ReceivingHalf(Frames(there), channel), lost.append)
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
        assert channel.on_credit is None

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
