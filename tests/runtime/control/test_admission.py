"""Connections without the token are closed; those with it are admitted."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import trio
import trio.testing

from penstock.runtime.control.admission import HANDSHAKE_SECONDS, Admission
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.system.transport import serve_forever

TOKEN = b"t" * 32


def on_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def prove(stream: trio.abc.Stream, admission: Admission, found: list[Frames]) -> None:
    """Serve one connection as a listener does."""
    frames = await admission.admit(stream)
    if frames is not None:
        found.append(frames)
    else:
        await trio.aclose_forcefully(stream)


def test_a_connection_without_a_handshake_is_closed_after_ten_seconds() -> None:
    async def main() -> None:
        admission, found = Admission(TOKEN), list[Frames]()
        async with trio.open_nursery() as nursery:
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(prove, there, admission, found)
            began = trio.current_time()
            nonce = await here.receive_some()
            assert len(nonce) == 32
            assert await here.receive_some() == b""
            assert trio.current_time() - began == HANDSHAKE_SECONDS == 10.0
        assert not found

    on_virtual_time(main)


def test_time_in_which_a_function_holds_the_event_loop_does_not_count() -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        admission, found = Admission(TOKEN), list[Frames]()
        async with trio.open_nursery() as nursery:
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(prove, there, admission, found)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(3 * HANDSHAKE_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            await client_handshake(here, TOKEN)
        assert len(found) == 1

    trio.run(main, clock=clock)


def test_the_oldest_pending_handshake_is_closed_for_a_new_connection() -> None:
    async def main() -> None:
        admission, found = Admission(TOKEN, limit=3), list[Frames]()
        unknown = []
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                here, there = trio.testing.memory_stream_pair()
                nursery.start_soon(prove, there, admission, found)
                unknown.append(here)
                await trio.testing.wait_all_tasks_blocked()
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(prove, there, admission, found)
            await client_handshake(here, TOKEN)
            await trio.testing.wait_all_tasks_blocked()
            assert len(found) == 1
            assert trio.current_time() < HANDSHAKE_SECONDS
            assert len(nursery.child_tasks) == 2  # the two newest connections
            for peer in unknown[:8]:
                await peer.receive_some()
                assert await peer.receive_some() == b""
            nursery.cancel_scope.cancel()

    on_virtual_time(main)


def test_processes_that_are_expected_do_not_close_each_others_connections() -> None:
    async def main() -> None:
        admission, found = Admission(TOKEN, limit=3), list[Frames]()
        admission.expect(7)
        async with trio.open_nursery() as nursery:
            connected = []
            for _ in range(10):
                here, there = trio.testing.memory_stream_pair()
                nursery.start_soon(prove, there, admission, found)
                connected.append(here)
            await trio.testing.wait_all_tasks_blocked()
            for stream in connected:
                await client_handshake(stream, TOKEN)
        assert len(found) == 10

    on_virtual_time(main)


class FullListener(trio.abc.Listener[trio.abc.Stream]):
    """Has no descriptor left for the first connections."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.failures = 3
        self.stream = stream

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        self.failures = 1
        return self.stream

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_a_listener_without_descriptors_goes_on_when_there_are_some() -> None:
    served: list[trio.abc.Stream] = []

    async def main() -> None:
        here, _ = trio.testing.memory_stream_pair()

        async def handler(stream: trio.abc.Stream) -> None:
            served.append(stream)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_forever, handler, [FullListener(here)])

    on_virtual_time(main)
    assert len(served) == 1
