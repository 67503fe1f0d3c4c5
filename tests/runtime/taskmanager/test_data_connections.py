"""Data connections reach the channel that they name, and only in their own attempt."""

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.remote_channel import encode_header
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryTransport, memory_streams
from penstock.runtime.taskmanager.data_connections import DataConnections

TOKEN = b"t" * 32
ID = ChannelId(0, 1, 0)


def worker(attempt: int = 5) -> tuple[DataConnections, dict[ChannelId, InputChannel]]:
    """Return the connections of worker 0 and its only input channel, from worker 1."""
    spec = WorkerSpec("memory:jm", TOKEN, 0, attempt, 1.0)
    gate = InputGate(lambda: None, lambda: 0.0)
    gate.add(ID, 4)
    lost: list[str] = []
    return DataConnections(spec, MemoryTransport(MemoryNetwork()), lost.append), gate.channels


async def accepted(
    connections: DataConnections, attempt: int, id: ChannelId
) -> Callable[[], Awaitable[None]] | None:
    """Connect as a sender of an attempt, and return what serves the connection."""
    ours, theirs = memory_streams()
    served: list[Callable[[], Awaitable[None]] | None] = []

    async def accept() -> None:
        served.append(await connections.accept(theirs))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        frames: Frames = await client_handshake(ours, TOKEN)
        await frames.send(encode_header(attempt, id))
    return served[0]


def test_a_connection_of_another_attempt_is_refused() -> None:
    async def main() -> None:
        connections, inputs = worker(attempt=5)
        connections.expect(inputs, 2)
        assert await accepted(connections, 4, ID) is None
        assert await accepted(connections, 5, ID) is not None

    trio.run(main)


def test_a_channel_is_connected_once_and_an_unknown_one_never() -> None:
    async def main() -> None:
        connections, inputs = worker()
        connections.expect(inputs, 2)
        assert await accepted(connections, 5, ChannelId(9, 1, 0)) is None
        assert await accepted(connections, 5, ID) is not None
        assert await accepted(connections, 5, ID) is None
        await connections.wait_for_inputs()

    trio.run(main)


def test_a_connection_that_comes_before_the_deployment_waits_for_it() -> None:
    async def main() -> None:
        connections, inputs = worker()
        served: list[object] = []

        async def connect() -> None:
            served.append(await accepted(connections, 5, ID))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.testing.wait_all_tasks_blocked()
            assert not served
            connections.expect(inputs, 2)
        assert served[0] is not None

    trio.run(main)
