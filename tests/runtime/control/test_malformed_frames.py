"""Malformed frames end their connection, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock import StreamExecutionEnvironment
from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.control import messages
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.control.packing import pack, unpack_event
from penstock.runtime.control.requests import (
    ListJobs,
    Refused,
    decode_job,
    decode_order,
    decode_request,
    encode_request,
    versions,
)
from penstock.runtime.dispatcher.dispatcher import Dispatcher
from penstock.runtime.dispatcher.state_folder import StateFolder
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.remote_channel import (
    DataConnection,
    decode_header,
)
from penstock.runtime.system.transport import SocketTransport
from penstock.testing.simulation.machine import Machine
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import program, run_program

TOKEN = b"t" * 32


def input_channel() -> tuple[InputGate, InputChannel]:
    """Return a gate and its only channel, which has four credits."""
    gate = InputGate(lambda: None, lambda: 0.0)
    return gate, gate.add(ChannelId(0, 1, 0), 4)


def socket_streams() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection of real sockets."""
    here, there = trio.socket.socketpair()
    return trio.SocketStream(here), trio.SocketStream(there)


FRAMES = {
    "no msgpack": b"\xc1",
    "nothing": b"",
    "a number": b"\x05",
    "deep": b"\x91" * 100_000,
    "quite deep": b"\x91" * 900 + b"\x01",
    "a long array": b"\xdd\xff\xff\xff\xff",
    "cut": b"\xa5ab",
    "text that is none": b"\xa1\xff",
    "an unhashable key": b"\x81\x91\x01\x02",
    "an empty list": b"\x90",
    "a heartbeat of text": pack([19, "x", None]),
    "a message of no worker": pack([0, 77, 1, 1, "sim:1/none"]),
    "a message that is none": pack([-1]),
    "a map": pack({"do": 5}),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_malformed_frame_is_refused_by_each_decoder(frame: bytes) -> None:
    for decode in (messages.decode, decode_header, decode_job, decode_order, unpack_event):
        if frame == FRAMES["a message of no worker"] and decode is messages.decode:
            continue  # it is one, and its place decides
        with pytest.raises(ProtocolError):
            decode(frame)
    with pytest.raises(Refused):
        decode_request(frame)


REQUESTS = {
    "no do": {},
    "an unknown one": {"do": "dance"},
    "an unhashable one": {"do": [1]},
    "submit without a name": {"do": "submit", "folder": "/", "job": b""},
    "submit of text": {"do": "submit", "name": "j", "folder": "/", "job": ""},
    "cancel by number": {"do": "cancel", "id": 1, "now": True},
    "other versions": {"do": "list", "versions": 7},
    "versions of all kinds": {"do": "list", "versions": [[[]], 1]},
}


@pytest.mark.parametrize("tcp", [False, True])
def test_the_job_service_outlives_malformed_frames(tcp: bool, tmp_path: Path) -> None:
    frames = [*FRAMES.values()]
    frames += [pack({"versions": versions(), **request}) for request in REQUESTS.values()]
    said: list[str] = []

    async def main() -> None:
        folder = StateFolder(tmp_path / "home")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Dispatcher(folder, 0 if tcp else None, report=said.append).run)
            with trio.fail_after(60):
                while not said:
                    await trio.sleep(0.01)
                contact = folder.contact()
                assert contact is not None
                address, token = contact
                assert address.startswith("tcp:" if tcp else "unix:")
                for frame in [*frames, encode_request(ListJobs())]:
                    stream = await SocketTransport().connect(address)
                    client = await client_handshake(stream, token)
                    await client.send(frame)
                    answer = await client.receive()
                    assert answer is not None
                    event = unpack_event(answer)
                    assert event["event"] == "refused" or frame == encode_request(ListJobs())
                    assert await client.receive() is None
                    await client.aclose()
            assert event == {"event": "jobs", "jobs": []}
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_job_outlives_unknown_peers_and_malformed_frames() -> None:
    LEDGERS[31] = Ledger()
    closed: list[int] = []

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(lambda i: i, 150, 10.0, clock=trio.current_time)
        source = env.from_source(numbers, None, "gen")
        source.rebalance().map(lambda i: i).sink_to(LedgerSink(31))

    async def script(job: JobManager, machine: Machine, events: list[dict[str, Any]]) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.01)
        attempt = job._attempt
        assert attempt is not None
        [region] = attempt._attempts.values()
        stranger = machine.process("stranger")
        silent = []
        for address in list(machine._network._listening):
            silent.append(await machine.connect(stranger, address))
            for frame in FRAMES.values():
                stream = await machine.connect(stranger, address)
                await (await client_handshake(stream, region.workers._token)).send(frame)
        for stream in silent:
            assert len(await stream.receive_some()) == 32
            assert await stream.receive_some() == b""
        closed.append(len(silent))

    config = JobConfig(name="j", parallelism=2, checkpoint_interval_seconds=1.0)
    ran = run_program(program(build, config), script=script)
    assert isinstance(ran.outcome, JobOutcome), ran
    assert not ran.crashes
    assert not ran.outcome.restarts
    assert LEDGERS[31].output().total() == 150
    assert closed == [3]  # of the JobManager, and of both workers


#: The link of the only channel, as frames have it.
LINK = b"\x00\x00\x00\x00"


async def lost_by(frame: bytes, connection: DataConnection) -> str:
    """Return why a connection ends after a frame."""
    here, there = trio.testing.memory_stream_pair()
    lost: list[str] = []
    await Frames(here).send(frame)
    await connection.run(Frames(there), lost.append)
    (reason,) = lost
    return reason


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x07" + LINK,
        b"\x00" + LINK,
        b"\x01" + LINK + b"\xc1",
        b"\x01" + LINK + b"\x93\x01\x02\x03",
        b"\x02\x00\x00\x00\x05",
    ],
)
def test_a_malformed_frame_of_a_sender_is_a_lost_connection(frame: bytes) -> None:
    connection = DataConnection()
    connection.add_input(input_channel()[1])
    assert trio.run(lost_by, frame, connection).startswith("a data connection broke: ")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" + LINK,
        b"\x03" + LINK + b"\xc1",
        b"\x03" + LINK + b"\x92\xa1a\xa1b",
        b"\x03\x00\x00\x00\x05\x93\x01\x01\x01",
    ],
)
def test_a_malformed_frame_of_a_receiver_is_a_lost_connection(frame: bytes) -> None:
    connection = DataConnection()
    connection.add_output(0, 4, lambda: None)
    assert trio.run(lost_by, frame, connection).startswith("a data connection broke: ")


def test_a_malformed_message_of_a_worker_is_a_lost_connection_with_the_reason() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(lambda i: i, 100, 50.0, clock=trio.current_time)
        env.from_source(numbers, None, "gen").print()

    async def script(job: JobManager, machine: Machine, events: list[dict[str, Any]]) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.01)
        # The worker's end of its control connection.
        for process in machine.processes:
            if process.name == "worker 0":
                await Frames(process.streams[0]).send(b"\xc1")

    ran = run_program(program(build, JobConfig(name="j")), script=script)
    assert not ran.crashes
    said = str(ran.outcome)
    assert "worker 0" in said
    assert "sent a message that cannot be understood: malformed frame" in said


def test_a_malformed_message_of_the_jobmanager_ends_the_worker_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = GeneratorSource(lambda i: i, 100, 50.0, clock=trio.current_time)
        env.from_source(numbers, None, "gen").add_sink(lambda record: None)

    async def script(job: JobManager, machine: Machine, events: list[dict[str, Any]]) -> None:
        while not any(event["event"] == "running" for event in events):
            await trio.sleep(0.01)
        # The JobManager's end of the worker's control connection.
        stream = machine.processes[1].streams[0].peer
        assert stream is not None
        await Frames(stream).send(b"\x05")

    ran = run_program(program(build, JobConfig(name="j")), script=script)
    assert not ran.crashes
    assert "worker 0" in str(ran.outcome)
    assert "worker 0 closed its connection: malformed message" in capsys.readouterr().err
