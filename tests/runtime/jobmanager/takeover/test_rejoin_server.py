"""Workers of a dead JobManager that offer their tasks: who is waited for, and who is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinServer

TOKEN = b"secret"


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        trio.run(functools.partial(test, **fixtures))

    return run


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.communicate()


def offer(worker: int, pid: int, attempt: int = 7) -> m.Rejoin:
    return m.Rejoin(worker, attempt, pid, "", b"", b"", [], True, 0, [], [], [], [], [], False)


async def connect(server: RejoinServer, nursery: trio.Nursery, first: m.Message) -> Frames:
    """Connect to a server as a worker does, and send the first message."""
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve, theirs)
    frames = await client_handshake(ours, TOKEN)
    await frames.send(m.encode(first))
    return frames


async def told(frames: Frames) -> m.Message | None:
    frame = await frames.receive()
    return None if frame is None else m.decode(frame)


@in_trio
async def test_all_workers_are_waited_for_and_an_accepted_one_keeps_its_connection(processes):
    server = RejoinServer(TOKEN, gathers=True)
    heartbeats: list[m.Heartbeat] = []
    async with trio.open_nursery() as nursery:
        offers = [offer(slot, process.pid) for slot, process in enumerate(processes)]
        first = await connect(server, nursery, offers[0])
        beating = await connect(server, nursery, m.Heartbeat(0, 7))
        other = await connect(server, nursery, m.Heartbeat(0, 6))

        async def come_later() -> None:
            await connect(server, nursery, offers[1])

        nursery.start_soon(come_later)
        workers = await server.gather(2)
        assert [worker.offer for worker in workers] == offers

        async def serve(frames: Frames) -> None:
            await frames.send(m.encode(m.Complete(20)))

        workers[0].accept(serve)
        workers[1].refuse()
        server.take_over(7, heartbeats.append)
        assert await told(first) == m.Complete(20)
        await beating.send(m.encode(m.Heartbeat(0, 7)))
        assert await told(other) == m.Shutdown()
        await trio.testing.wait_all_tasks_blocked()
        assert heartbeats == [m.Heartbeat(0, 7)] * 2
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_worker_that_ends_lets_the_others_not_wait_for_it(processes):
    server = RejoinServer(TOKEN, gathers=True)
    async with trio.open_nursery() as nursery:
        await connect(server, nursery, offer(0, processes[0].pid))
        processes[0].kill()
        [worker] = await server.gather(2)
        assert worker.offer.worker == 0
        nursery.cancel_scope.cancel()


@in_trio
async def test_refused_workers_are_ordered_to_end_and_those_that_do_not_are_killed(processes):
    server = RejoinServer(TOKEN, gathers=True)
    async with trio.open_nursery() as nursery:
        frames = await connect(server, nursery, offer(0, processes[0].pid))
        beating = await connect(server, nursery, m.Heartbeat(0, 7))
        workers = await server.gather(1)
        await server.refuse(workers)
        assert await told(frames) == await told(beating) == m.Shutdown()
        nursery.cancel_scope.cancel()
    assert await trio.to_thread.run_sync(processes[0].wait) == -9


@in_trio
async def test_nobody_is_waited_for_after_the_decision_or_by_a_first_jobmanager(processes):
    for gathers in (False, True):
        server = RejoinServer(TOKEN, gathers)
        assert await server.gather(2) == []
        await server.refuse([])
        async with trio.open_nursery() as nursery:
            late = await connect(server, nursery, offer(0, processes[0].pid))
            assert await told(late) == m.Shutdown()
            nursery.cancel_scope.cancel()


@in_trio
async def test_a_peer_without_the_secret_or_without_sense_is_ignored():
    server = RejoinServer(TOKEN, gathers=True)
    async with trio.open_nursery() as nursery:
        for nonsense in (b"", b"nonsense", m.encode(m.Start())):
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve, theirs)
            await (await client_handshake(ours, TOKEN)).send(nonsense)
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve, theirs)
        await ours.send_all(b"x" * 64)
        await trio.testing.wait_all_tasks_blocked()
        assert await server.gather(1) == []
        nursery.cancel_scope.cancel()
