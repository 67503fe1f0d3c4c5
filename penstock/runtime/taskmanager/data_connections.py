"""Connect the channels of a worker with the channels of the job's other workers.

Two workers have one connection if there is a channel between them, and otherwise none. The worker
with the lower index opens it. The first frame contains the execution attempt and this index. A
worker refuses connections of other attempts, so no record of an older attempt reaches a task of
this attempt. If some workers are replaced, the new ones open their connections to the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import Sender
from penstock.runtime.network.remote_channel import DataConnection, decode_header, encode_header
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.transport import Transport

#: Returns the indices of the workers at both ends of a channel: the sender's and the receiver's.
Ends = Callable[[ChannelId], tuple[int, int]]


def _no_ends(channel: ChannelId) -> tuple[int, int]:
    raise ProtocolError(f"{channel} is not known yet")


class DataConnections:
    """The data connections of one worker.

    Arguments:
        spec: the specification of the worker.
        transport: opens connections.
        lost: a function that is called when a connection has ended, with the reason.
    """

    def __init__(self, spec: WorkerSpec, transport: Transport, lost: Callable[[str], None]) -> None:
        self._spec = spec
        self._transport = transport
        self._lost = lost
        self._admission = Admission(spec.token)
        #: The connections, by the index of the other worker.
        self._peers: dict[int, DataConnection] = {}
        self._inputs: Mapping[ChannelId, InputChannel] = {}
        self._ends: Ends = _no_ends
        #: The attempt of each worker that has taken the place of another one, by its index.
        self._replaced: dict[int, int] = {}
        self._expecting = trio.Event()
        self._connected: set[int] = set()
        self._changed = Signal()

    def expect(
        self,
        inputs: Mapping[ChannelId, InputChannel],
        outputs: Mapping[ChannelId, Callable[[], None]],
        ends: Ends,
        credits: int,
        workers: int,
    ) -> dict[ChannelId, Sender]:
        """Start to serve connections, and return the sending halves of the output channels.

        Connections that arrive earlier wait for this call.

        Arguments:
            inputs: the worker's input channels, by their ids.
            outputs: for each channel to another worker, a function that wakes its sender.
            ends: returns the indices of the workers that send into a channel, and that receive.
            credits: the number of batches that may be in flight on a channel.
            workers: the number of workers of the job.
        """
        self._inputs, self._ends = inputs, ends
        senders: dict[ChannelId, Sender] = {}
        for id, wake in outputs.items():
            senders[id] = self._peer(ends(id)[1]).add_output(id.link, credits, wake)
        for id, channel in inputs.items():
            if ends(id)[0] != self._spec.worker:
                self._peer(ends(id)[0]).add_input(channel)
        self._admission.expect(workers)
        self._expecting.set()
        return senders

    def replace(self, workers: Collection[int], attempt: int) -> None:
        """Wait for connections of new workers, which take the place of workers that have died.

        Only senders are replaced. The channels from them must be ready for the new ones.

        Arguments:
            workers: the indices of the workers.
            attempt: the number of their execution attempt.
        """
        for worker in workers:
            self._replaced[worker] = attempt
            if (old := self._peers.pop(worker, None)) is not None:
                old.abandon()
                self._connected.discard(worker)
                for id, channel in self._inputs.items():
                    if self._ends(id)[0] == worker:
                        self._peer(worker).add_input(channel)
        self._admission.expect(len(workers))

    def _peer(self, worker: int) -> DataConnection:
        return self._peers.setdefault(worker, DataConnection())

    @property
    def count(self) -> int:
        """Return the number of workers to which this one is connected."""
        return len(self._peers)

    async def open(
        self, addresses: Sequence[str], running: Collection[int], nursery: trio.Nursery
    ) -> None:
        """Open the connections to workers with higher indices, and to those that already run.

        Arguments:
            addresses: the addresses of all workers, by their indices.
            running: the indices of the workers that already run.
            nursery: the nursery in which the connections send and receive frames.
        """
        for worker, connection in sorted(self._peers.items()):
            if worker > self._spec.worker or worker in running:
                stream = await self._transport.connect(addresses[worker])
                frames = await client_handshake(stream, self._spec.token)
                await frames.send(encode_header(self._spec.attempt, self._spec.worker))
                self._connect(worker)
                nursery.start_soon(connection.run, frames, self._lost)

    async def wait_for_all(self) -> None:
        """Wait until all connections exist."""
        while self._connected != self._peers.keys():
            await self._changed.wait()

    async def accept(self, stream: trio.abc.Stream) -> Callable[[], Awaitable[None]] | None:
        """Check an incoming connection, and return a function that serves it.

        Return None if the worker refuses the connection. The other worker then reports that the
        connection was closed.
        """
        frames = await self._admission.admit(stream)
        if frames is None:
            return None
        try:
            header = await frames.receive()
            if header is None:
                return None
            attempt, worker = decode_header(header)
        except (ProtocolError, trio.BrokenResourceError, OSError):
            return None
        replaced = worker in self._replaced
        if attempt != self._replaced.get(worker, self._spec.attempt):
            return None
        await self._expecting.wait()
        connection = self._peers.get(worker)
        opens = worker < self._spec.worker or replaced
        if connection is None or not opens or worker in self._connected:
            return None
        self._connect(worker)
        return partial(connection.run, frames, self._lost)

    def _connect(self, worker: int) -> None:
        self._connected.add(worker)
        self._changed.set()
