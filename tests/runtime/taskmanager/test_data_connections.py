"""Two workers have one data connection, and only in their own attempt."""

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.network.elements import EncodedBatch
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.remote_channel import encode_header
from penstock.runtime.network.resumable_channel import ResumableChannel
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryTransport, memory_streams
from penstock.runtime.taskmanager.data_connections import DataConnections

TOKEN = b"t" * 32


def worker(attempt: int = 5) -> DataConnections:
    """Return the connections of worker 1, which has an input channel from worker 0."""
    spec = WorkerSpec("memory:jm", TOKEN, 1, attempt, 1.0)
    return DataConnections(spec, MemoryTransport(MemoryNetwork()), lambda _: None)


def ends(channel: ChannelId) -> tuple[int, int]:
    """Return the workers at both ends of a channel: worker i runs subtask i."""
    return channel.source, channel.target


def expect(connections: DataConnections) -> None:
    gate = InputGate(lambda: None, lambda: 0.0)
    gate.add(ChannelId(0, 0, 1), 4)
    connections.expect(gate.channels, {}, ends, 4, 2)


async def accepted(
    connections: DataConnections, attempt: int, peer: int
) -> Callable[[], Awaitable[None]] | None:
    """Connect as a worker of an attempt, and return what serves the connection."""
    ours, theirs = memory_streams()
    served: list[Callable[[], Awaitable[None]] | None] = []

    async def accept() -> None:
        served.append(await connections.accept(theirs))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        frames: Frames = await client_handshake(ours, TOKEN)
        await frames.send(encode_header(attempt, peer))
    return served[0]


def test_a_connection_of_another_attempt_is_refused() -> None:
    async def main() -> None:
        connections = worker(attempt=5)
        expect(connections)
        assert await accepted(connections, 4, 0) is None
        assert await accepted(connections, 5, 0) is not None

    trio.run(main)


def test_a_worker_is_connected_once_and_one_without_channels_never() -> None:
    async def main() -> None:
        connections = worker()
        expect(connections)
        assert connections.count == 1
        assert await accepted(connections, 5, 2) is None
        assert await accepted(connections, 5, 0) is not None
        assert await accepted(connections, 5, 0) is None
        await connections.wait_for_all()

    trio.run(main)


def test_the_worker_with_the_higher_index_waits_for_the_connection() -> None:
    async def main() -> None:
        connections = worker()
        gate = InputGate(lambda: None, lambda: 0.0)
        gate.add(ChannelId(0, 2, 1), 4)
        connections.expect(gate.channels, {ChannelId(0, 1, 2): lambda: None}, ends, 4, 3)
        assert connections.count == 1  # for both directions
        assert await accepted(connections, 5, 2) is None

    trio.run(main)


def test_a_connection_that_comes_before_the_deployment_waits_for_it() -> None:
    async def main() -> None:
        connections = worker()
        served: list[object] = []

        async def connect() -> None:
            served.append(await accepted(connections, 5, 0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.testing.wait_all_tasks_blocked()
            assert not served
            expect(connections)
        assert served[0] is not None

    trio.run(main)


def test_a_new_worker_takes_the_place_of_one_that_has_died() -> None:
    """The receiver refuses the new one before it has the order, and the old one afterwards."""
    network = MemoryNetwork()

    async def main() -> None:
        lost: list[str] = []
        gate = InputGate(lambda: None, lambda: 0.0)
        channel = ResumableChannel(ChannelId(3, 0, 1), gate, 4, lambda: 0.0)
        gate.add_resumable(channel)
        spec = WorkerSpec("memory:jm", TOKEN, 1, 5, 1.0)
        receiver = DataConnections(spec, MemoryTransport(network), lost.append)
        receiver.expect(gate.channels, {}, ends, 4, 2)

        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.abc.Stream) -> None:
                serving = await receiver.accept(stream)
                if serving is not None:
                    await serving()

            transport = MemoryTransport(network)
            address = await transport.listen("w1.5", serve, nursery)

            async def send(attempt: int, text: str) -> None:
                sender = DataConnections(
                    WorkerSpec("memory:jm", TOKEN, 0, attempt, 1.0), transport, lambda _: None
                )
                id = channel.id
                [half] = sender.expect({}, {id: lambda: None}, ends, 4, 2).values()
                await sender.open(["unused", address], [1], nursery)
                half.send_batch(text.encode(), 1)
                await trio.testing.wait_all_tasks_blocked()

            def taken() -> list[str]:
                found = []
                while (item := gate.take()) is not None:
                    if isinstance(item[1], EncodedBatch):
                        found.append(bytes(item[1].payload).decode())
                return found

            await send(5, "old")
            assert taken() == ["old"]
            await send(8, "too early")
            receiver.replace([0], 8)
            channel.sender_restarts(0, lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            await send(5, "too late")
            await send(8, "repeated")
            assert taken() == []
            nursery.cancel_scope.cancel()
        assert lost == []

    trio.run(main)


def test_channels_of_both_directions_share_a_connection() -> None:
    """Send batches both ways, which are put before the connection exists."""
    network = MemoryNetwork()

    async def main() -> None:
        lost: list[str] = []
        gates = [InputGate(lambda: None, lambda: 0.0) for _ in range(2)]
        workers, senders = [], []
        for index, gate in enumerate(gates):
            other = 1 - index
            spec = WorkerSpec("memory:jm", TOKEN, index, 5, 1.0)
            connections = DataConnections(spec, MemoryTransport(network), lost.append)
            for link in (3, 7):
                gate.add(ChannelId(link, other, index), 4)
            outputs = {ChannelId(link, index, other): lambda: None for link in (3, 7)}
            workers.append(connections)
            senders.append(connections.expect(gate.channels, outputs, ends, 4, 2))
        for sending in senders:
            for id, sender in sending.items():
                sender.send_batch(f"{id.link} from {id.source}".encode(), 1)

        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.abc.Stream) -> None:
                serving = await workers[1].accept(stream)
                assert serving is not None
                await serving()

            address = await workers[1]._transport.listen("w1.5", serve, nursery)
            await workers[0].open(["unused", address], [], nursery)
            for connections in workers:
                await connections.wait_for_all()
            await trio.testing.wait_all_tasks_blocked()
            for index, gate in enumerate(gates):
                taken = []
                while (item := gate.take()) is not None:
                    channel, element = item
                    assert channel is not None
                    assert isinstance(element, EncodedBatch)
                    taken.append((channel.id.link, bytes(element.payload).decode()))
                assert taken == [(3, f"3 from {1 - index}"), (7, f"7 from {1 - index}")]
            nursery.cancel_scope.cancel()
        assert lost == []

    trio.run(main)
