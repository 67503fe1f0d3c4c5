"""`WebSocketSource` against a server in the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from websockets.sync.server import serve

from penstock import Json, StreamExecutionEnvironment
from penstock.connectors.http import WebSocketSource
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import ReaderContext, SourceReader
from penstock.testing.connectors.http_fakes import FakeSocketServer


class SocketServer:
    """Runs a function for each connection."""

    def __init__(self, handle: Callable[[Any], None], **options: Any) -> None:
        self.server = serve(handle, "127.0.0.1", 0, **options)
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> SocketServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()


@pytest.fixture
def open_reader():
    made: list[SourceReader] = []

    def open(source: WebSocketSource, position: Any = None) -> SourceReader:
        reader = source.create_reader(ReaderContext("uid", 0, 1))
        split = source.create_enumerator(1).next_split(0)
        assert split is not None
        reader.open(split, position)
        made.append(reader)
        return reader

    yield open
    for reader in made:
        reader.close()


def test_messages_come_in_order_with_their_number_as_position(open_reader):
    done = threading.Event()

    def handle(connection: Any) -> None:
        for number in range(5):
            connection.send(str(number))
        connection.send(b"bytes")
        done.wait()

    with SocketServer(handle) as server:
        reader = open_reader(WebSocketSource(server.url), 10)
        records: list[Any] = []
        while len(records) < 6:
            read = reader.read(2)
            records += read.records
            assert len(read.records) <= 2 and read.position == 10 + len(records)
        assert records == [*"01234", b"bytes"]
        done.set()
        reader.close()


def test_greetings_are_sent_after_each_connection_and_a_cut_is_mended(open_reader):
    greetings: list[str] = []

    def handle(connection: Any) -> None:
        greetings.append(connection.recv())
        connection.send(f'{{"connection": {len(greetings)}}}')

    with SocketServer(handle) as server:
        source = WebSocketSource(server.url, Json(), greetings=lambda: ["subscribe"])
        reader = open_reader(source)
        for number in (1, 2, 3):
            assert reader.read(10).records == [{"connection": number}]
    assert greetings[:3] == ["subscribe"] * 3


def test_a_reader_that_waits_can_be_closed(open_reader):
    connected, done = threading.Event(), threading.Event()

    def handle(connection: Any) -> None:
        connected.set()
        done.wait()

    with SocketServer(handle) as server:
        reader = open_reader(WebSocketSource(server.url))
        waiting = threading.Thread(target=reader.read, args=(1,))
        waiting.start()
        connected.wait()
        reader.close()
        waiting.join()
        done.set()


def test_a_message_that_is_too_large_ends_the_job(open_reader):
    def handle(connection: Any) -> None:
        connection.send("x" * 2000)
        connection.recv()

    with SocketServer(handle) as server:
        reader = open_reader(WebSocketSource(server.url, max_message_bytes=1000))
        with pytest.raises(JobError, match="raise max_message_bytes") as error:
            reader.read(1)
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE


@pytest.mark.parametrize(
    ("status", "recoverability"),
    [(401, Recoverability.NON_RECOVERABLE), (503, Recoverability.ENVIRONMENT)],
)
def test_a_refusal_says_its_status(open_reader, status, recoverability):
    def refuse(connection: Any, request: Any) -> Any:
        return connection.respond(status, "no")

    with SocketServer(lambda connection: None, process_request=refuse) as server:
        reader = open_reader(WebSocketSource(server.url, unreachable_seconds=0.2))
        with pytest.raises(JobError, match=f"with status {status}") as error:
            reader.read(1)
        assert error.value.recoverability is recoverability


@pytest.mark.parametrize("url", ["", "http://x", None])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(GraphError, match="URL"):
        WebSocketSource(url)


def test_a_fake_sends_messages_to_a_program_and_keeps_what_it_was_sent():
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process(True)
    with FakeSocketServer(["1", b"2"]) as server:
        source = WebSocketSource(server.url, Json(int), greetings=["subscribe"])
        with env.from_source(source).execute_and_collect() as numbers:
            assert [next(numbers), next(numbers)] == [1, 2]
            server.append("3")
            assert next(numbers) == 3
    assert server.received == ["subscribe"] and server.connections == 1
