"""Connect the channels of a worker with the channels of the job's other workers.

Each channel between two workers has a separate connection, which the sender opens. The first frame
contains the execution attempt and the channel. The receiver refuses connections of other attempts,
so no record of an older attempt reaches a task of this attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import Sender
from penstock.runtime.network.remote_channel import (
    ReceivingHalf,
    SendingHalf,
    decode_header,
    encode_header,
    run_half,
)
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.transport import Transport


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
        self._inputs: Mapping[ChannelId, InputChannel] = {}
        self._expecting = trio.Event()
        self._connected: set[ChannelId] = set()
        self._changed = Signal()

    def expect(self, inputs: Mapping[ChannelId, InputChannel], workers: int) -> None:
        """Start to serve connections. Connections that arrive earlier wait for this call.

        Arguments:
            inputs: the worker's input channels, by their ids.
            workers: the number of workers of the job.
        """
        self._inputs = inputs
        self._admission.expect(workers)
        self._expecting.set()

    async def open(
        self,
        outputs: Mapping[ChannelId, Callable[[], None]],
        addresses: Sequence[str],
        credits: int,
        nursery: trio.Nursery,
    ) -> dict[ChannelId, Sender]:
        """Open the connections of output channels, and return their sending halves.

        Arguments:
            outputs: for each channel to another worker, a function that wakes its sender.
            addresses: the addresses of all workers, by their indices.
            credits: the number of batches that may be in flight on a channel.
            nursery: the nursery in which the connections send and receive frames.
        """
        senders: dict[ChannelId, Sender] = {}
        for id, wake in outputs.items():
            stream = await self._transport.connect(addresses[id.target])
            frames = await client_handshake(stream, self._spec.token)
            await frames.send(encode_header(self._spec.attempt, id))
            half = SendingHalf(frames, credits, wake)
            senders[id] = half
            nursery.start_soon(run_half, half, self._lost)
        return senders

    async def wait_for_inputs(self) -> None:
        """Wait until all input channels from other workers are connected."""
        remote = {id for id in self._inputs if id.source != self._spec.worker}
        while not remote <= self._connected:
            await self._changed.wait()

    async def accept(self, stream: trio.abc.Stream) -> Callable[[], Awaitable[None]] | None:
        """Check an incoming connection, and return a function that serves it.

        Return None if the worker refuses the connection. The sending worker then reports that the
        connection was closed.
        """
        frames = await self._admission.admit(stream)
        if frames is None:
            return None
        try:
            header = await frames.receive()
            if header is None:
                return None
            attempt, id = decode_header(header)
        except (ProtocolError, trio.BrokenResourceError, OSError):
            return None
        if attempt != self._spec.attempt:
            return None
        await self._expecting.wait()
        channel = self._inputs.get(id)
        if channel is None or id in self._connected:
            return None
        self._connected.add(id)
        self._changed.set()
        return partial(run_half, ReceivingHalf(frames, channel), self._lost)
