"""`SseSource` against a stream of events that is cut and goes on."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from penstock import BAD_MESSAGES, Json, SimpleStringSchema, StreamExecutionEnvironment
from penstock.connectors.http import ServerSentEvent, SseSource
from penstock.connectors.http.server_sent_events import EventStreamParser
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import ReaderContext, SourceReader
from penstock.testing.connectors import SourceConformance
from penstock.testing.connectors.http_fakes import FakeEventServer
from tests.processes.harness import wait_until


def parsed(data: bytes, sizes: random.Random | None = None) -> list[ServerSentEvent]:
    parser, events = EventStreamParser(), []
    while data:
        size = len(data) if sizes is None else sizes.randint(1, 4)
        events += [event for event, _ in parser.feed(data[:size])]
        data = data[size:]
    return events


STREAM = (
    "\ufeff: a comment\n"
    "data: one\n\n"
    "id: 7\r\ndata:two\r\ndata:  lines\r\n\r\n"
    "event: price\rdata: é\r\r"
    "event: nothing\n\n"
    "id\ndata\n\n"
    "retry: 1500\nretry: soon\nunknown: x\n\n"
    "data: incomplete\n"
).encode()

EVENTS = [
    ServerSentEvent("one"),
    ServerSentEvent("two\n lines", id="7"),
    ServerSentEvent("é", "price", "7"),
    ServerSentEvent("", id=""),
]


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_bytes_are_divided_into_events_wherever_they_are_cut(seed):
    assert parsed(STREAM, None if seed is None else random.Random(seed)) == EVENTS


def test_the_parser_knows_the_last_id_and_the_delay_that_the_server_wants():
    parser = EventStreamParser("3")
    assert [own for _, own in parser.feed(b"data: x\n\nid: 4\ndata: y\n\nretry: 250\n\n")] == [0, 1]
    assert parser.last_id == "4" and parser.retry_seconds == 0.25


class TestResuming(SourceConformance):
    """The server goes on behind each id, so the source can be read again from each position."""

    limit = 20

    @pytest.fixture(autouse=True)
    def _server(self):
        with FakeEventServer([f"event {number}" for number in range(20)]) as self.server:
            yield

    def create_source(self) -> SseSource:
        return SseSource(self.server.url, SimpleStringSchema(), resumes=True)

    def expected(self) -> list[str]:
        return [f"event {number}" for number in range(20)]


class Readers:
    def __init__(self) -> None:
        self.made: list[SourceReader] = []

    def __call__(self, source: SseSource, position: Any = None) -> SourceReader:
        reader = source.create_reader(ReaderContext("uid", 0, 1))
        split = source.create_enumerator(1).next_split(0)
        assert split is not None
        reader.open(split, position)
        self.made.append(reader)
        return reader


@pytest.fixture
def open_reader():
    readers = Readers()
    yield readers
    for reader in readers.made:
        reader.close()


def test_events_go_on_after_cuts_and_restarts_of_the_server(open_reader):
    with FakeEventServer(["0"]) as server:
        reader = open_reader(SseSource(server.url, SimpleStringSchema()))
        found = list(reader.read(10).records)
        for number in range(1, 10):
            if number % 3 == 0:
                server.stop()
                server.start()
            else:
                server.cut()
            server.append(str(number))
            while len(found) <= number:
                found += reader.read(10).records
        assert found == list("0123456789")
        assert server.connections >= 10


def test_the_end_of_the_stream_ends_the_job():
    with FakeEventServer(["1", "2", "3"], ends=True) as server:
        env = StreamExecutionEnvironment.get_execution_environment()
        numbers = env.from_source(SseSource(server.url, Json())).map(lambda n: n + 1)
        assert list(numbers.execute_and_collect(in_process=True)) == [2, 3, 4]


def test_a_reader_that_waits_can_be_closed(open_reader):
    with FakeEventServer() as server:
        reader = open_reader(SseSource(server.url))
        waiting = threading.Thread(target=reader.read, args=(1,))
        waiting.start()
        wait_until(lambda: server.connections, "it is connected")
        reader.close()
        waiting.join()


def test_bad_messages_go_to_the_side_output(open_reader):
    with FakeEventServer(["1", "none", "2"]) as server:
        reader = open_reader(SseSource(server.url, Json(on_error="side_output")))
        records: list[Any] = []
        bad: list[Any] = []
        while 2 not in records:
            read = reader.read(10)
            records += read.records
            bad += read.side_output
        [(tag, message)] = bad
        assert records == [1, 2] and tag == BAD_MESSAGES and message.message == b"none"
        assert server.url in message.place


class Answering(FakeEventServer):
    """Answers with a status, and another type."""

    status, kind, body = 404, "text/plain", b"no such stream"

    def handle(self, request: Any) -> None:
        self.connections += 1
        request.send_response(self.status)
        request.send_header("Content-Type", self.kind)
        request.send_header("Content-Length", str(len(self.body)))
        request.end_headers()
        request.wfile.write(self.body)


@pytest.mark.parametrize(
    ("status", "kind", "body", "message"),
    [
        (404, "text/plain", b"no such stream", "404 Not Found: no such stream"),
        (401, "text/plain", b"", "401"),
        (200, "text/html", b"<html>", "sends text/html, and not text/event-stream"),
        (200, "text/event-stream", b"data: x\n\n", "an event without an id"),
    ],
)
def test_an_answer_that_no_retry_mends_ends_the_job(open_reader, status, kind, body, message):
    with Answering() as server:
        server.status, server.kind, server.body = status, kind, body
        with pytest.raises(JobError, match=message) as error:
            open_reader(SseSource(server.url, resumes=True)).read(1)
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_server_that_is_busy_is_an_error_of_the_environment(open_reader):
    with Answering() as server:
        server.status = 503
        with pytest.raises(JobError, match=r"was not reached for 0.3 s: .* 503") as error:
            open_reader(SseSource(server.url, unreachable_seconds=0.3)).read(1)
        assert error.value.recoverability is Recoverability.ENVIRONMENT
        assert server.connections > 1


def test_secrets_in_headers_are_read_in_the_worker(open_reader):
    seen: list[str] = []

    class Remembering(FakeEventServer):
        def handle(self, request: Any) -> None:
            seen.append(request.headers.get("Authorization"))
            super().handle(request)

    with Remembering(["x"]) as server:
        source = SseSource(server.url, headers={"Authorization": lambda: "Bearer s3cret"})
        open_reader(source).read(1)
    assert seen == ["Bearer s3cret"]


@pytest.mark.parametrize("url", ["", "localhost", "ftp://x", None])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(GraphError, match="URL"):
        SseSource(url)
