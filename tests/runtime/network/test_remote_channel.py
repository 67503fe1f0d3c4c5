"""Connections that end, break or carry nonsense, and what they must not touch."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
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
from penstock.runtime.control.admission import HANDSHAKE_SECONDS, Admission
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
    ReceivingHalf,
    SendingHalf,
    decode_header,
    run_half,
)
from penstock.runtime.system.transport import SocketTransport, _serve
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.processes import Machine
from tests.simulation.run_program import program, run_program

TOKEN = b"t" * 32
BATCH = b"\x00\x00\x00\x00\x01payload"


def input_channel() -> tuple[InputGate, InputChannel]:
    """Return a gate and its only channel, which has four credits."""
    gate = InputGate(lambda: None, lambda: 0.0)
    return gate, gate.add(ChannelId(0, 1, 0), 4)


def socket_streams() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection of real sockets."""
    here, there = trio.socket.socketpair()
    return trio.SocketStream(here), trio.SocketStream(there)


# ---- descriptors


def test_no_credit_is_written_after_its_connection_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = socket_streams()
        gate, channel = input_channel()
        lost: list[str] = []
        sender = Frames(here)
        for _ in range(4):
            await sender.send(BATCH)
        await sender.aclose()
        await run_half(ReceivingHalf(Frames(there), channel), lost.append)
        assert lost == ["a data connection was closed by the other end"]
        number = there.socket.fileno()
        await there.aclose()
        with ExitStack() as stack:
            # One of these is given the number that the socket had.
            files = [(tmp_path / str(n)).open("wb", buffering=0) for n in range(4)]
            for file in files:
                stack.callback(file.close)
            assert number in [file.fileno() for file in files]
            while gate.take() is not None:
                pass
            assert [Path(file.name).read_bytes() for file in files] == [b""] * 4
        assert channel._on_credit is None

    trio.run(main)


def test_a_closed_connection_refuses_to_write(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = socket_streams()
        frames, number = Frames(here), here.socket.fileno()
        await frames.aclose()
        with (tmp_path / "file").open("wb", buffering=0) as file:
            assert file.fileno() == number
            with pytest.raises(OSError, match="descriptor"):
                frames.send_now(b"credit")
        assert (tmp_path / "file").read_bytes() == b""
        await there.aclose()

    trio.run(main)


# ---- strangers


def on_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def prove(stream: trio.abc.Stream, admission: Admission, found: list[Frames]) -> None:
    """Serve one connection as a listener does."""
    frames = await admission.admit(stream)
    if frames is not None:
        found.append(frames)
    else:
        await trio.aclose_forcefully(stream)


def test_a_connection_that_proves_nothing_is_closed_after_ten_seconds() -> None:
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


def test_time_in_which_a_function_holds_the_event_loop_is_no_time_of_a_handshake() -> None:
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


def test_of_too_many_strangers_the_oldest_is_closed_and_one_with_the_token_gets_in() -> None:
    async def main() -> None:
        admission, found = Admission(TOKEN, limit=3), list[Frames]()
        strangers = []
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                here, there = trio.testing.memory_stream_pair()
                nursery.start_soon(prove, there, admission, found)
                strangers.append(here)
                await trio.testing.wait_all_tasks_blocked()
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(prove, there, admission, found)
            await client_handshake(here, TOKEN)
            await trio.testing.wait_all_tasks_blocked()
            assert len(found) == 1
            assert trio.current_time() < HANDSHAKE_SECONDS
            assert len(nursery.child_tasks) == 2  # the newest two strangers
            for stranger in strangers[:8]:
                await stranger.receive_some()
                assert await stranger.receive_some() == b""
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
            nursery.start_soon(_serve, handler, [FullListener(here)])

    on_virtual_time(main)
    assert len(served) == 1


# ---- frames that make no sense

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
def test_a_frame_that_makes_no_sense_is_refused_by_each_decoder(frame: bytes) -> None:
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
def test_the_job_service_outlives_frames_that_make_no_sense(tcp: bool, tmp_path: Path) -> None:
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


def test_a_job_outlives_strangers_and_frames_that_make_no_sense() -> None:
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
        stranger = machine.process("stranger")
        silent = []
        for address in list(machine._network._listening):
            silent.append(await machine.connect(stranger, address))
            for frame in FRAMES.values():
                stream = await machine.connect(stranger, address)
                await (await client_handshake(stream, attempt._workers._token)).send(frame)
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


@pytest.mark.parametrize("frame", [b"", b"\x07", b"\x00", b"\x01\xc1", b"\x01\x93\x01\x02\x03"])
def test_a_malformed_frame_of_a_sender_is_a_lost_connection(frame: bytes) -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        lost: list[str] = []
        await Frames(here).send(frame)
        await run_half(ReceivingHalf(Frames(there), input_channel()[1]), lost.append)
        (reason,) = lost
        assert reason.startswith("a data connection broke: ")

    trio.run(main)


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x03\xc1", b"\x03\x92\xa1a\xa1b"])
def test_a_malformed_frame_of_a_receiver_is_a_lost_connection(frame: bytes) -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        lost: list[str] = []
        await Frames(here).send(frame)
        await run_half(SendingHalf(Frames(there), 4, lambda: None), lost.append)
        (reason,) = lost
        assert reason.startswith("a data connection broke: ")

    trio.run(main)


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
        (stream,) = machine.processes[0].streams
        await Frames(stream).send(b"\x05")

    ran = run_program(program(build, JobConfig(name="j")), script=script)
    assert not ran.crashes
    assert "worker 0" in str(ran.outcome)
    assert "worker 0 closed its connection: malformed message" in capsys.readouterr().err
