"""Frames wait in an outbox until they are written, or the connection is gone."""

from __future__ import annotations

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
