"""Start the JobManager process of a job, or connect to one that runs: `JobManagerProcess`.

The process listens on a socket of the job's own, from its first moment on: the service makes the
socket, and the process inherits it. So a connection is refused exactly if no JobManager runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.control.packing import pack, unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.control.state_queries import LiveQuery
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.system.adopted_process import AdoptedProcess
from penstock.runtime.system.jobmanager_start import (
    JobManagerHandle,
    JobManagerStart,
    jobmanager_starter,
)
from penstock.runtime.system.rendezvous import Rendezvous, listen_at, receive_descriptor
from penstock.runtime.system.unix_sockets import socket_name
from penstock.runtime.user_code.process_logging import LEVEL_VARIABLE

#: The pause before the service connects again to a JobManager that has closed a connection.
RECONNECT_SECONDS = 0.05


async def connect(address: str) -> trio.SocketStream | None:
    """Connect to the JobManager of a job; return None if none runs.

    Arguments:
        address: the `address` of its record.
    """
    connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await connection.connect(socket_name(address))
    except OSError:
        connection.close()
        return None
    return trio.SocketStream(connection)


class JobManagerProcess:
    """A JobManager process and the connection to it.

    Arguments:
        record: the record of its job.
        token: the secret of the job.
        process: the process, if this service has started it.
        stream: a connection to the process, if there is one already.
    """

    def __init__(
        self,
        record: JobRecord,
        token: bytes,
        process: JobManagerHandle | None = None,
        stream: trio.SocketStream | None = None,
    ) -> None:
        self._record = record
        self._token = token
        self._process = process
        self._stream = stream
        self._adopted: AdoptedProcess | None = None
        self._frames: Frames | None = None
        #: A lock that is held while a frame is sent, so that frames do not mix.
        self._sending = trio.Lock()
        self._killed = False
        #: The orders that wait until the process is connected.
        self._waiting: list[Order] = []
        #: The socket of the supervisor, if the process has handed it over to this service.
        self._rendezvous: socket.socket | None = None

    @classmethod
    async def start(
        cls,
        record: JobRecord,
        registry: JobRegistry,
        token: bytes,
        rendezvous: Rendezvous | None,
        log_level: str,
    ) -> JobManagerProcess:
        """Start a process, which reads the job from the file of the registry.

        Raise `OSError` if the process cannot be started, or `StoreError` if there is no socket.
        """
        listening = listen_at(record.address)
        with listening, registry.open_log(record.id) as log:
            descriptors = [listening.fileno()]
            if rendezvous is not None:
                descriptors.append(rendezvous.fileno())
            files = [str(registry.request(record.id)), str(registry.events(record.id))]
            # The process outlives the service.
            start = JobManagerStart(
                ["service", *files],
                descriptors,
                log,
                record.folder,
                {**os.environ, LEVEL_VARIABLE: log_level},
            )
            process = await trio.to_thread.run_sync(jobmanager_starter.start, start)
        record.pid = process.pid
        return cls(record, token, process)

    async def events(self, orders: Sequence[Order]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the process until it has ended.

        The first event of each connection is "attached".

        Arguments:
            orders: the orders to give at the beginning.

        Raises:
            ProtocolError: if the process sends something that is no event.
        """
        self._waiting[:0] = orders
        while True:
            stream, self._stream = self._stream or await connect(self._record.address), None
            if stream is None:
                return
            # The process has ended, or is about to end: then the next connection is refused.
            ended = (PenstockError, trio.BrokenResourceError, trio.ClosedResourceError, OSError)
            try:
                frames = await self._attach(stream)
                while (frame := await frames.receive()) is not None:
                    event = unpack_event(frame)
                    if event["event"] == "attached":
                        self._adopt(event)
                        waiting, self._waiting = self._waiting, []
                        for order in waiting:
                            await self.order(order)
                    yield event
            except ProtocolError:
                raise
            except ended:
                pass
            finally:
                self._frames = None
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
            await trio.sleep(RECONNECT_SECONDS)

    async def _attach(self, stream: trio.SocketStream) -> Frames:
        frames = await client_handshake(stream, self._token)
        await frames.send(pack({"do": "attach"}))
        descriptor = await receive_descriptor(stream)
        self.close()
        if descriptor is not None:
            self._rendezvous = socket.socket(fileno=descriptor)
        self._frames = frames
        return frames

    def take_rendezvous(self) -> socket.socket | None:
        """Return the socket of the supervisor, which the caller then owns; None if none is left."""
        rendezvous, self._rendezvous = self._rendezvous, None
        return rendezvous

    def close(self) -> None:
        """Close the socket of the supervisor, unless the service has taken it."""
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _adopt(self, event: dict[str, Any]) -> None:
        pid = event.get("pid")
        if self._process is None and self._adopted is None and isinstance(pid, int):
            self._adopted = AdoptedProcess(pid)
            self._record.pid = pid
            if self._killed:
                self._adopted.kill()

    async def wait(self) -> tuple[int | None, str]:
        """Wait until the process has ended, and return its exit code and a text about the end.

        The code is None if another service has started the process.
        """
        if self._process is not None:
            await trio.lowlevel.wait_readable(self._process.descriptor)
            return await trio.to_thread.run_sync(self._process.end)
        if self._adopted is not None:
            await self._adopted.wait()
        return None, "has ended"

    async def order(self, order: Order) -> None:
        """Send an order to the process, or do nothing if it has ended.

        If the process is just starting, it receives the order when it has started.
        """
        ended = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
        with contextlib.suppress(*ended):
            async with self._sending:
                if self._frames is None:
                    self._waiting.append(order)
                else:
                    await self._frames.send(encode_order(order))

    async def query(self, query: LiveQuery) -> bool:
        """Send a query of keyed state, and return whether the process is connected."""
        ended = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
        with contextlib.suppress(*ended):
            async with self._sending:
                if self._frames is not None:
                    await self._frames.send(encode_order(query))
                    return True
        return False

    def kill(self) -> None:
        """Kill the process. Its workers then end by themselves."""
        self._killed = True
        if self._process is not None:
            self._process.kill()
        elif self._adopted is not None:
            self._adopted.kill()
