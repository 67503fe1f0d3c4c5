"""Who may ask, and what bad clients cannot do to the server."""

import http.client
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from penstock.dataflow.errors import PenstockError, StoreError
from penstock.rest.access import Tokens
from penstock.rest.event_stream import EPOCH, event_stream, resume_after
from penstock.rest.server import ServerCertificate, listen
from penstock.runtime.control.event_log import EventLog
from tests.connectors.certificates import make_certificates
from tests.processes.harness import wait_until
from tests.rest.served import RUNNING, TOKENS, Served, program, served, started, status

LARGE = 100_000_000
STREAMS = 500


@pytest.fixture
def one() -> Iterator[Served]:
    with served() as server:
        yield server


# ---- tokens, hosts and origins


@pytest.mark.parametrize("path", ["/jobs", "/openapi.json", "//metrics", "/nothing", "//page/"])
@pytest.mark.parametrize("token", [None, " ", "wrong", TOKENS.full + "x", "ÿ"])
def test_without_a_right_token_there_is_no_answer(one: Served, path: str, token: str | None):
    answer = one.ask(path, token=token)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "token" in answer.json["errors"][0]


def test_a_read_only_token_looks_and_does_not_touch(one: Served):
    assert one.ask("/jobs", token=TOKENS.read_only).status == 200
    for path, method in (("/stop", "POST"), ("", "PATCH"), ("/savepoints", "POST")):
        answer = one.of_job(path, method=method, token=TOKENS.read_only)
        assert answer.status == 403
        assert "only for reading" in answer.json["errors"][0]
    assert one.job.orders == []


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("127.0.0.1:99", 200),
        ("[::1]:8081", 200),
        ("known.example", 200),
        ("LOCALHOST.", 200),
        (socket.gethostname(), 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
        ("[bad", 403),
    ],
)
def test_a_request_for_another_host_is_refused(one: Served, host: str, code: int):
    assert one.ask("/jobs", headers={"Host": host}).status == code


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://localhost:1", 200),
        ("https://localhost:1", 403),
        ("http://localhost:2", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ],
)
def test_a_page_of_another_origin_is_refused(one: Served, origin: str, code: int):
    answer = one.ask("/jobs", headers={"Host": "localhost:1", "Origin": origin})
    assert answer.status == code


def test_tokens_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path):
    made = Tokens.load(tmp_path / "home" / "http")
    assert Tokens.load(tmp_path / "home" / "http") == made
    assert made.full != made.read_only
    for name in ("token", "read-token"):
        mode = (tmp_path / "home" / "http" / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home" / "http").stat().st_mode) == 0o700
    names = {path.name for path in (tmp_path / "home" / "http").iterdir()}
    assert names == {"read-token", "token"}


def test_the_read_only_token_may_be_in_a_file_elsewhere(tmp_path: Path):
    elsewhere = tmp_path / "metrics" / "read-token"
    with pytest.raises(StoreError, match=f"cannot keep tokens.*{elsewhere.parent}"):
        Tokens.load(tmp_path / "http", elsewhere)
    elsewhere.parent.mkdir()
    made = Tokens.load(tmp_path / "http", elsewhere)
    assert elsewhere.read_text() == made.read_only and made.full not in elsewhere.read_text()
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "http").iterdir()] == ["token"]


def test_a_token_that_is_a_link_or_empty_is_refused(tmp_path: Path):
    folder = tmp_path / "http"
    folder.mkdir()
    (folder / "token").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("x" * 40)
    with pytest.raises(StoreError, match="cannot keep tokens"):
        Tokens.load(folder)
    (folder / "token").unlink()
    (folder / "token").touch()
    with pytest.raises(StoreError, match="not a token; remove the file"):
        Tokens.load(folder)


# ---- bad clients


def test_unknown_paths_and_methods_are_refused_with_a_sentence(one: Served):
    answer = one.ask("/nothing")
    assert answer.status == 404
    assert "/v1/openapi.json has all endpoints" in answer.json["errors"][0]
    answer = one.ask("/jobs", method="DELETE")
    assert answer.status == 405
    assert "GET" in answer.headers["allow"]
    assert one.ask("/jobs", method="HEAD").status == 200


def test_a_large_body_is_refused_before_it_is_read(one: Served):
    answer = one.of_job("/stop", method="POST", body=b"", headers={"Content-Length": str(LARGE)})
    assert answer.status == 413
    assert "1,000,000 bytes" in answer.json["errors"][0]
    with one.connect() as connection:
        connection.sendall(
            f"POST /v1/jobs/{one.id}/stop HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKENS.full}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        chunk = b"%x\r\n%s\r\n" % (100_000, b"x" * 100_000)
        try:
            for _ in range(LARGE // 100_000):
                connection.sendall(chunk)
        except OSError:
            pass  # the server has closed the connection
        assert one.job.orders == []
    assert one.ask("/jobs").status == 200


def test_a_large_body_without_a_token_is_refused_for_the_token(one: Served):
    answer = one.of_job(
        "/stop", method="POST", token=None, body=b"", headers={"Content-Length": str(LARGE)}
    )
    assert answer.status == 401


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 1_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        b"",
    ],
    ids=lambda garbage: repr(garbage[:12]),
)
def test_garbage_does_not_harm_the_server(one: Served, garbage: bytes):
    with one.connect() as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            data = b""
            while part := connection.recv(65_536):
                data += part
        except OSError:
            data = b""  # the server has closed the connection
    # The last one asks for no answer, and HTTP/2 has answers of its own.
    assert not data or not data.startswith(b"HTTP/1.1 2")
    assert not data.startswith(b"HTTP/1.1 5")
    assert one.ask("/jobs").status == 200


def test_a_port_in_use_is_reported():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PenstockError, match=f"port {port} of 127.0.0.1: it is in use"):
            listen("127.0.0.1", port)
    with pytest.raises(PenstockError, match=r"cannot listen on port 0 of no-such-host\.invalid"):
        listen("no-such-host.invalid", 0)


# ---- streams of events


def test_a_stream_has_all_events_and_ends_with_the_job(one: Served):
    one.report(started(program()), RUNNING)
    stream = one.stream()
    assert (stream.status, stream.media_type) == (200, "text/event-stream; charset=utf-8")
    first, second = stream.read(2)
    assert (first[1], second[1]) == ("started", "running")
    one.report(status(1))
    ((id, kind, data),) = stream.read(1)
    assert (id, kind, data["event"]) == (f"{EPOCH}-3", "status", "status")
    # JSON has no number for a gauge that is not a number.
    assert data["metrics"][2]["subtasks"] == ["high", None]
    one.end()
    assert stream.rest() == []
    stream.close()


def test_events_that_come_while_others_are_sent_follow():
    log = EventLog()

    async def main() -> list[bytes]:
        log.append({"event": "started"})
        async with aclosing(event_stream(log, 0)) as stream:
            chunks = [await anext(stream), await anext(stream)]
            # The client is slow: the chunk is not sent yet.
            log.append({"event": "running"})
            log.append({"event": "status"})
            chunks += [await anext(stream), await anext(stream)]
            # The last event, too.
            log.append({"event": "finished"})
            log.close()
            return [*chunks, *[chunk async for chunk in stream]]

    kinds = [chunk.split(b"\n")[1] for chunk in trio.run(main)[1:]]
    assert kinds == [b"event: started", b"event: running", b"event: status", b"event: finished"]


def test_a_stream_continues_after_the_last_event_of_its_client(one: Served):
    one.report(started(program()), RUNNING, status(1), status(2), {"event": "committed"})
    stream = one.stream(f"{EPOCH}-2")
    # Of the statuses, only the newest is kept.
    assert [(id, kind) for id, kind, _ in stream.read(2)] == [
        (f"{EPOCH}-4", "status"),
        (f"{EPOCH}-5", "committed"),
    ]
    stream.close()
    other = one.stream("another-3")
    assert other.read(1)[0][1] == "started"
    other.close()
    one.end()
    done = one.stream(f"{EPOCH}-5")
    assert done.status == 204
    done.close()


def test_events_that_are_no_longer_kept_are_reported_as_a_gap(one: Served):
    for _ in range(60):
        one.report(*[{"event": "committed"}] * 100)
    stream = one.stream(f"{EPOCH}-10")
    gap, first = stream.read(2)
    assert gap == (None, "gap", {"missing": 990})
    assert first[0] == f"{EPOCH}-1001"
    stream.close()


def test_a_bad_id_of_an_event_begins_at_the_start():
    for id in ("", "x", f"{EPOCH}-", f"{EPOCH}-x", f"{EPOCH}-{'9' * 40}", None):
        assert resume_after(id) == 0


def test_five_hundred_streams_are_served_at_once(one: Served):
    one.report(started(program()), RUNNING)
    streams = [one.stream(f"{EPOCH}-2") for _ in range(STREAMS)]
    assert {stream.status for stream in streams} == {200}
    assert one.ask("/jobs").status == 200
    one.report(status(5))
    assert {stream.read(1)[0][1] for stream in streams} == {"status"}
    for stream in streams:
        stream.close()
    # The server notices that the clients have left, and keeps nothing for them.
    wait_until(lambda: not one.state.log.listeners, "the streams are closed")
    assert one.ask("/jobs").status == 200


# ---- TLS


def test_the_api_is_served_with_tls(tmp_path: Path):
    files = make_certificates(tmp_path)
    tls = ServerCertificate(Path(files.certificate), Path(files.key))
    tls.check()
    context = ssl.create_default_context(cafile=files.ca)
    with served(tls=tls) as one:
        connection = http.client.HTTPSConnection("localhost", one.port, context=context)
        headers = {"Authorization": f"Bearer {TOKENS.full}"}
        connection.request("GET", "/v1/jobs", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()
        origin = {**headers, "Origin": f"https://localhost:{one.port}"}
        connection = http.client.HTTPSConnection("localhost", one.port, context=context)
        connection.request("GET", "/v1/jobs", headers=origin)
        assert connection.getresponse().status == 200
        connection.close()


def test_a_certificate_that_does_not_fit_its_key_is_refused(tmp_path: Path):
    files = make_certificates(tmp_path)
    with pytest.raises(PenstockError, match="cannot use the certificate"):
        ServerCertificate(Path(files.certificate), Path(files.certificate)).check()
