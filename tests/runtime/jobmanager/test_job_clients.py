"""A JobManager of the service survives whatever happens on the connections to the service."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import trio

from penstock.runtime.control.event_journal import EventJournal
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.control.packing import pack, unpack_event
from penstock.runtime.control.requests import Order, encode_order
from penstock.runtime.jobmanager.job_clients import ServiceClients
from penstock.runtime.system.rendezvous import Rendezvous, listen_at, receive_descriptor
from tests.processes.harness import PATIENCE

TOKEN = b"t" * 32


async def attached(address: str) -> tuple[Frames, str]:
    """Connect as a service does; return the connection and the address of the received socket."""
    stream = await trio.open_unix_socket(address)
    frames = await client_handshake(stream, TOKEN)
    await frames.send(pack({"do": "attach"}))
    descriptor = await receive_descriptor(stream)
    assert descriptor is not None
    with socket.socket(fileno=descriptor) as received:
        return frames, received.getsockname()


async def next_event(frames: Frames) -> dict[str, Any]:
    frame = await frames.receive()
    assert frame is not None
    return unpack_event(frame)


def test_services_come_and_go_in_every_way(tmp_path: Path):
    address, journal = str(tmp_path / "socket"), EventJournal(tmp_path / "events")
    rendezvous = Rendezvous(str(tmp_path / "rejoin"))
    inherited = socket.socket(fileno=socket.dup(rendezvous.fileno()))
    clients = ServiceClients(listen_at(address), inherited, tmp_path / "job", journal, 7)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.serve, TOKEN)
            clients.send({"event": "note", "text": "nobody listens"})
            # The connection is reset, since data was sent that nobody has read.
            frames, received = await attached(address)
            assert received == str(tmp_path / "rejoin")
            while not clients._outboxes:
                await trio.sleep(0)
            for _ in range(50):
                clients.send({"event": "status", "text": "x" * 10_000})
            await frames.aclose()
            # One that sends garbage is disconnected.
            frames, _ = await attached(address)
            event = await next_event(frames)
            assert (event["event"], event["pid"]) == ("attached", 7)
            await frames.send(b"\xc1")
            assert await frames.receive() is None
            await frames.aclose()
            # One that does not know the token.
            stream = await trio.open_unix_socket(address)
            await stream.send_all(b"?" * 64)
            await stream.aclose()
            frames, _ = await attached(address)
            assert (await next_event(frames))["event"] == "attached"
            clients.send({"event": "note", "text": "hear"})
            event = await next_event(frames)
            assert (event["text"], event["seq"]) == ("hear", 2)
            await frames.send(encode_order(Order.SAVEPOINT))
            assert await clients.next_order() is Order.SAVEPOINT
            await clients.flush()
            nursery.cancel_scope.cancel()
            await frames.aclose()

    async def limited() -> None:
        with trio.fail_after(PATIENCE):
            await main()

    trio.run(limited)
    rendezvous.close()
    inherited.close()
    assert [event["text"] for event in journal.read()] == ["nobody listens", "hear"]
