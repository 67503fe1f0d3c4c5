"""Frames wait in an outbox until they are written, or the connection is gone."""

from __future__ import annotations

import random
import socket

import pytest
import trio
import trio.testing

from penstock.runtime.control.framing import Frames
from penstock.runtime.control.outbox import Outbox
from penstock.runtime.system.memory_connection import memory_streams


def test_frames_are_written_in_order_also_those_put_before_the_connection() -> None:
    async def main() -> list[bytes | None]:
        ours, theirs = memory_streams()
        outbox, received = Outbox(), Frames(theirs)
        outbox.put(b"one")
        outbox.put(b"two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.write, Frames(ours))
            await outbox.flush()
            outbox.put(b"three")
            got = [await received.receive() for _ in range(3)]
            nursery.cancel_scope.cancel()
        assert len(outbox) == 0
        return got

    assert trio.run(main) == [b"one", b"two", b"three"]


def test_a_flush_waits_until_a_slow_connection_has_taken_all() -> None:
    class Slow(Frames):
        taken, go = trio.Event(), trio.Event()

        async def send(self, payload: bytes) -> None:
            self.taken.set()
            await self.go.wait()

    async def main() -> None:
        connection, outbox, flushed = Slow(memory_streams()[0]), Outbox(), trio.Event()

        async def flush() -> None:
            await outbox.flush()
            flushed.set()

        async with trio.open_nursery() as nursery:
            outbox.put(b"frame")
            nursery.start_soon(outbox.write, connection)
            nursery.start_soon(flush)
            await connection.taken.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert len(outbox) == 1
            assert not flushed.is_set()
            connection.go.set()
            await flushed.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_frames_are_dropped_when_the_connection_is_gone() -> None:
    async def main() -> None:
        ours, theirs = memory_streams()
        outbox = Outbox()
        outbox.put(b"lost")
        theirs.close()
        await outbox.write(Frames(ours))
        await outbox.flush()
        outbox.put(b"lost, too")
        assert outbox.closed
        assert len(outbox) == 0

    trio.run(main)


def connected() -> tuple[Frames, socket.socket]:
    """Return a connection of the kernel, and its other end, which does not block."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return Frames(trio.SocketStream(trio.socket.from_stdlib_socket(ours))), theirs


def test_a_frame_is_written_before_put_returns_if_none_waits() -> None:
    async def main() -> None:
        connection, theirs = connected()
        outbox = Outbox()
        with theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.write, connection)
                await trio.testing.wait_all_tasks_blocked()
                outbox.put(b"answer")
                assert theirs.recv(100) == b"\0\0\0\6answer"
                assert len(outbox) == 0
                nursery.cancel_scope.cancel()
            # Without a writer, a frame waits for the next one.
            outbox.put(b"later")
            assert len(outbox) == 1
            with pytest.raises(BlockingIOError):
                theirs.recv(100)
        await connection.aclose()

    trio.run(main)


@pytest.mark.parametrize("seed", range(5))
def test_frames_that_the_kernel_takes_in_part_stay_whole_and_in_order(seed: int) -> None:
    choose = random.Random(seed)
    frames = [choose.randbytes(choose.choice((3, 1_000, 300_000))) for _ in range(40)]
    waited = 0

    async def main() -> list[bytes | None]:
        nonlocal waited
        connection, theirs = connected()
        outbox = Outbox()
        received = Frames(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
        got: list[bytes | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.write, connection)
            await trio.testing.wait_all_tasks_blocked()
            left = list(frames)
            while left:
                for _ in range(min(len(left), choose.randint(1, 8))):
                    outbox.put(left.pop(0))
                waited = max(waited, len(outbox))
                for _ in range(choose.randint(0, len(frames) - len(left) - len(got))):
                    got.append(await received.receive())
            while len(got) < len(frames):
                got.append(await received.receive())
            await outbox.flush()
            nursery.cancel_scope.cancel()
        await received.aclose()
        await connection.aclose()
        return got

    assert trio.run(main) == frames
    assert waited, "the kernel took everything"


def test_put_does_not_fail_if_the_other_process_has_just_died() -> None:
    async def main() -> None:
        connection, theirs = connected()
        outbox = Outbox()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.write, connection)
            await trio.testing.wait_all_tasks_blocked()
            theirs.close()
            outbox.put(b"lost")
            assert outbox.closed and len(outbox) == 0
            outbox.put(b"lost, too")
            await outbox.flush()
        await connection.aclose()

    trio.run(main)
