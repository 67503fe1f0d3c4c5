"""`WebhookSource`: 202 only for what is on disk, and each request once."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from penstock import Json
from penstock.connectors.http import BearerToken, HmacSignature, WebhookRequest, WebhookSource
from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance
from penstock.testing.connectors.source_run import SourceRun
from tests.processes.harness import wait_until


class Endpoint:
    """A reader of a source, whose records are collected."""

    def __init__(self, source: WebhookSource, position: Any = None) -> None:
        self.metrics = MetricGroup()
        self.reader: Any = source.create_reader(ReaderContext("uid", 0, 1, self.metrics))
        split = source.create_enumerator(1).next_split(0)
        assert split is not None
        self.reader.open(split, position)
        self.records: list[Any] = []
        self.timestamps: list[int] = []
        self.position: Any = position
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        wait_until(lambda: self.reader.port or self.error, "the endpoint is open")

    def _read(self) -> None:
        try:
            while not self.reader._closed.is_set():
                read = self.reader.read(10)
                self.records += read.records
                self.timestamps += getattr(read, "timestamps", [])
                self.position = read.position
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self.reader.close()
        self.thread.join()

    def send(
        self, body: bytes, path: str = "/", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        return post(self.reader.port, body, path, method, **headers)


def post(
    port: int, body: bytes, path: str = "/", method: str = "POST", **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


@pytest.fixture
def open_endpoint(tmp_path):
    made: list[Endpoint] = []

    def open(position: Any = None, **options: Any) -> Endpoint:
        source = WebhookSource(tmp_path / "log", 0, **options)
        made.append(Endpoint(source, position))
        return made[-1]

    yield open
    for endpoint in made:
        endpoint.close()


Open = Callable[..., Endpoint]


def test_a_request_that_is_confirmed_is_emitted_once_also_by_the_next_attempt(open_endpoint: Open):
    first = open_endpoint(keep_headers=["X-Event"])
    for number in range(3):
        status, _ = first.send(b"%d" % number, "/hooks?a=b", X_Event="paid", Content_Type="text/x")
        assert status == 202
    wait_until(lambda: len(first.records) == 3, "all are emitted")
    [request, *_] = first.records
    assert request == WebhookRequest(
        b"0", "/hooks?a=b", first.timestamps[0], "", "text/x", {"x-event": "paid"}
    )
    assert first.timestamps == sorted(first.timestamps)
    assert abs(first.timestamps[0] / 1000 - time.time()) < 600
    position = first.position
    first.send(b"3")
    first.close()

    second = open_endpoint(position)
    second.send(b"4")
    wait_until(lambda: len(second.records) == 2, "the later ones are emitted")
    assert [request.body for request in second.records] == [b"3", b"4"]


def test_many_clients_at_a_time_with_kept_connections(open_endpoint: Open):
    endpoint = open_endpoint(max_connections=8)

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", endpoint.reader.port, timeout=60)
        for i in range(20):
            connection.request("POST", "/", b"%d/%d" % (number, i))
            answer = connection.getresponse()
            assert answer.status == 202
            answer.read()
        connection.close()

    with ThreadPoolExecutor(20) as clients:
        list(clients.map(client, range(20)))
    wait_until(lambda: len(endpoint.records) == 400, "all are emitted")
    assert len({request.body for request in endpoint.records}) == 400


def test_a_key_that_comes_again_is_confirmed_and_not_emitted_again(open_endpoint: Open):
    first = open_endpoint()
    assert first.send(b"pay", Idempotency_Key="k1")[0] == 202
    assert first.send(b"pay", Idempotency_Key="k1") == (
        202,
        {"status": "Accepted", "detail": "it was accepted before"},
    )
    status, answer = first.send(b"other", Idempotency_Key="k1")
    assert status == 422 and "'k1' belongs to a request with another body" in answer["detail"]
    assert first.send(b"pay", Idempotency_Key="k2")[0] == 202
    first.close()
    second = open_endpoint([0, 0])
    assert second.send(b"pay", Idempotency_Key="k1")[0] == 202
    assert second.send(b"last")[0] == 202
    wait_until(lambda: len(second.records) == 3, "all are emitted")
    assert [(one.body, one.key) for one in second.records] == [
        (b"pay", "k1"),
        (b"pay", "k2"),
        (b"last", ""),
    ]
    assert second.metrics.counter("numRequestsDuplicated").count == 1


def test_the_same_key_at_the_same_time_is_emitted_once(open_endpoint: Open):
    endpoint = open_endpoint()
    with ThreadPoolExecutor(16) as clients:
        answers = list(
            clients.map(
                lambda number: endpoint.send(b"x", Idempotency_Key=f"k{number % 10}"), range(100)
            )
        )
    assert {status for status, _ in answers} == {202}
    endpoint.send(b"last")
    wait_until(lambda: endpoint.records[-1:] and endpoint.records[-1].body == b"last", "all came")
    assert len(endpoint.records) == 11


def test_requests_are_checked(open_endpoint: Open):
    token = open_endpoint(path="/in", verification=BearerToken(lambda: "s3cret"), max_body_bytes=10)
    right = {"Authorization": "Bearer s3cret"}
    assert token.send(b"x", "/in", **right)[0] == 202
    assert token.send(b"x", "/in/orders", **right)[0] == 202
    assert token.send(b"x", "/in")[0] == 401
    assert token.send(b"x", "/in", Authorization="Bearer wrong")[0] == 401
    assert token.send(b"x", "/index", **right)[0] == 404
    assert token.send(b"x" * 11, "/in", **right)[0] == 413
    assert token.send(b"", "/in", "GET", **right)[0] == 405
    assert token.metrics.counter("numRequestsRefused").count == 5
    assert token.metrics.counter("numRequestsAccepted").count == 2
    token.close()
    assert "s3cret" not in repr(BearerToken("s3cret")) + repr(HmacSignature("s3cret"))

    signed = open_endpoint(verification=HmacSignature("s3cret"))
    signature = hmac.new(b"s3cret", b"body", hashlib.sha256).hexdigest()
    assert signed.send(b"body", X_Hub_Signature_256=f"sha256={signature}")[0] == 202
    assert signed.send(b"b0dy", X_Hub_Signature_256=f"sha256={signature}")[0] == 401


def test_a_body_without_a_length_and_a_client_that_goes_away_are_no_requests(open_endpoint: Open):
    endpoint = open_endpoint()
    for request in (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhal",
        b"nonsense\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", endpoint.reader.port)) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        assert b" 202 " not in answer
    endpoint.send(b"real")
    wait_until(lambda: endpoint.records, "the real one is emitted")
    assert [request.body for request in endpoint.records] == [b"real"]


def test_a_full_log_is_answered_with_503_until_snapshots_make_room(open_endpoint: Open):
    endpoint = open_endpoint(
        segment_bytes=1000, max_body_bytes=1000, max_log_bytes=3000, deduplicate_seconds=0
    )
    statuses = [endpoint.send(b"x" * 900)[0] for _ in range(5)]
    assert statuses[0] == 202 and statuses[-1] == 503
    wait_until(lambda: len(endpoint.records) == statuses.count(202), "all are emitted")
    endpoint.reader.snapshot_completed(endpoint.position)
    assert endpoint.send(b"fits")[0] == 202


def test_a_second_reader_waits_until_the_first_is_gone(open_endpoint: Open, tmp_path):
    first = open_endpoint()
    first.send(b"one")
    waiting: list[Endpoint] = []
    source = WebhookSource(tmp_path / "log", 0)
    thread = threading.Thread(target=lambda: waiting.append(Endpoint(source, [0, 0])))
    thread.start()
    thread.join(0.5)
    assert not waiting, "two processes must not write one log"
    first.close()
    thread.join()
    wait_until(lambda: waiting[0].records, "the second one reads")
    waiting[0].close()


class TestConformance(SourceConformance):
    limit = 12

    @pytest.fixture(autouse=True)
    def _log(self, tmp_path):
        self.folder = tmp_path / "log"
        endpoint = Endpoint(WebhookSource(self.folder, 0))
        for number in range(12):
            assert endpoint.send(b'{"number": %d}' % number)[0] == 202
        endpoint.close()

    def create_source(self) -> WebhookSource:
        return WebhookSource(self.folder, 0, Json(), segment_bytes=100)

    def expected(self) -> list[Any]:
        return [{"number": number} for number in range(12)]

    def test_an_old_reader_that_reads_on_changes_nothing(self) -> None:
        """It cannot read on: `test_a_second_reader_waits_until_the_first_is_gone`."""

    def test_a_snapshot_between_any_two_reads_can_be_restored_at_any_parallelism(self) -> None:
        """As in the suite, but the old run ends before the next one begins."""
        for stops in range(13):
            run = SourceRun(self.create_source(), 1)
            for _ in range(stops):
                run.step()
            snapshot = run.snapshot()
            run.close()
            restored = SourceRun(self.create_source(), 2, snapshot, 2)
            self._require(f"restored after {stops}", restored.run(self.limit), self.expected())
            restored.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port"),
        ({"path": "x"}, "begins with '/'"),
        ({"verification": "token"}, "BearerToken"),
        ({"max_body_bytes": 0}, "must be positive"),
        ({"max_log_bytes": 1}, "max_log_bytes"),
        ({"format": bytes}, "DeserializationSchema"),
    ],
)
def test_wrong_arguments_are_refused(options, message, tmp_path):
    with pytest.raises(GraphError, match=message):
        WebhookSource(tmp_path, **{"port": 8080, **options})
