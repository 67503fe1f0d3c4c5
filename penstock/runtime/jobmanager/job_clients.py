"""Connect a JobManager to those who started its job: `JobManagerClient`.

A program has one connection, and its job stops when the connection ends: `AttachedClient`. The job
service may come and go, and its job goes on: `ServiceClients`.
"""

from __future__ import annotations

import contextlib
import socket
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.event_journal import EventJournal, is_kept
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.outbox import Outbox
from penstock.runtime.control.packing import pack_event
from penstock.runtime.control.requests import Order, decode_order, versions
from penstock.runtime.control.state_queries import LiveQuery
from penstock.runtime.system.private_files import read_private
from penstock.runtime.system.rendezvous import send_descriptor, serve_listener


class JobManagerClient(ABC):
    """Those who started a job: they send orders, and receive events."""

    @abstractmethod
    async def receive_job(self) -> bytes | None:
        """Return the job, as `encode_job` returned it; None if there is none."""

    @abstractmethod
    def send(self, event: dict[str, Any]) -> None:
        """Send an event without waiting."""

    @property
    @abstractmethod
    def behind(self) -> int:
        """The number of events that are not sent yet."""

    @abstractmethod
    async def serve(self, token: bytes) -> None:
        """Send and receive, until cancelled.

        Arguments:
            token: the secret of the job.
        """

    @abstractmethod
    async def next_order(self) -> Order | LiveQuery | None:
        """Return the next order. None means that the client is gone, and that the job must stop."""

    @abstractmethod
    async def flush(self) -> None:
        """Wait until the events that were sent are received."""


class AttachedClient(JobManagerClient):
    """A program, which has one connection to the JobManager of its job.

    Arguments:
        frames: the connection.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._outbox = Outbox()

    async def receive_job(self) -> bytes | None:
        """Return the job, as `encode_job` returned it; None if there is none."""
        return await self._frames.receive()

    def send(self, event: dict[str, Any]) -> None:
        """Send an event without waiting."""
        if not self._outbox.closed:
            self._outbox.put(pack_event(event))

    @property
    def behind(self) -> int:
        """The number of events that are not sent yet."""
        return len(self._outbox)

    async def serve(self, token: bytes) -> None:
        """Send events, until cancelled."""
        del token  # no other process has the connection
        await self._outbox.write(self._frames)

    async def next_order(self) -> Order | LiveQuery | None:
        """Return the next order of the program, or None if it is gone."""
        # A malformed order has the same effect as the end of the connection.
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            frame = await self._frames.receive()
            return None if frame is None else decode_order(frame)
        return None

    async def flush(self) -> None:
        """Wait until the program has received all events."""
        await self._outbox.flush()


class ServiceClients(JobManagerClient):
    """The job service, which connects to the JobManager again whenever it is started.

    Events are kept in the journal of the job before they are sent. So a service finds out what it
    has missed, also after the end of the job.

    Arguments:
        listening: the socket on which the service connects.
        rendezvous: the socket of the supervisor, which a service receives that connects; None if
            the job is not supervised.
        request: the path of the file with the job.
        journal: the journal of the job's events.
        pid: the process id of the JobManager.
    """

    def __init__(
        self,
        listening: socket.socket,
        rendezvous: socket.socket | None,
        request: Path,
        journal: EventJournal,
        pid: int,
    ) -> None:
        self._listening = listening
        self._rendezvous = rendezvous
        self._request = request
        self._journal = journal
        self._pid = pid
        self._outboxes: list[Outbox] = []
        self._send_orders, self._receive_orders = trio.open_memory_channel[Order | LiveQuery](100)

    async def receive_job(self) -> bytes | None:
        """Return the job, as `encode_job` returned it; None if it cannot be read."""
        with contextlib.suppress(OSError):
            return read_private(self._request)
        return None

    def send(self, event: dict[str, Any]) -> None:
        """Write an event to the journal, and send it without waiting to services."""
        if is_kept(event):
            event = self._journal.append(event)
        frame = pack_event(event)
        for outbox in self._outboxes:
            outbox.put(frame)

    @property
    def behind(self) -> int:
        """The number of events that are not sent yet."""
        return max(map(len, self._outboxes), default=0)

    async def serve(self, token: bytes) -> None:
        """Serve connections of the service, until cancelled."""
        admission = Admission(token)

        async def serve_one(stream: trio.abc.Stream) -> None:
            with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                frames = await admission.admit(stream)
                if frames is not None and await frames.receive() is not None:
                    await self._serve(frames)

        await serve_listener(self._listening, serve_one)

    async def _serve(self, frames: Frames) -> None:
        """Send events to a service that has sent its first frame, and receive its orders."""
        if isinstance(frames.stream, trio.SocketStream):
            rendezvous = self._rendezvous
            await send_descriptor(
                frames.stream, None if rendezvous is None else rendezvous.fileno()
            )
        outbox = Outbox()
        outbox.put(
            pack_event(
                {
                    "event": "attached",
                    "pid": self._pid,
                    "versions": versions(),
                }
            )
        )
        self._outboxes.append(outbox)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.write, frames)
                await self._receive(frames)
                nursery.cancel_scope.cancel()
        finally:
            outbox.closed = True
            self._outboxes.remove(outbox)

    async def _receive(self, frames: Frames) -> None:
        """Receive the orders of a service until its connection ends or breaks."""
        # An error must not reach the nursery: it would be a group there, and end the job.
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            while (frame := await frames.receive()) is not None:
                await self._send_orders.send(decode_order(frame))

    async def next_order(self) -> Order | LiveQuery | None:
        """Return the next order of a service."""
        return await self._receive_orders.receive()

    async def flush(self) -> None:
        """Wait until the connected services have received all events."""
        for outbox in list(self._outboxes):
            await outbox.flush()
