"""`HttpSink`: requests that are sent again have the same keys and contents."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Json, StreamExecutionEnvironment
from penstock.connectors.http import HttpSink
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.testing.connectors import SinkConformance
from penstock.testing.connectors.http_fakes import FakeReceiver, ReceivedRequest


class Faulty:
    """Answers with errors, some of them after the request was processed."""

    def __init__(self, seed: int, rate: float = 0.3) -> None:
        self.rng, self.rate = random.Random(seed), rate

    def __call__(self, request: ReceivedRequest) -> int:
        if self.rng.random() >= self.rate:
            return 200
        return self.rng.choice([0, 500, 503, 429, 409])


class Conformance(SinkConformance):
    whole_snapshots = True
    batch_records = 1
    parallel = 1

    @pytest.fixture(autouse=True)
    def _receiver(self):
        with FakeReceiver(Faulty(1, 0.05)) as self.receiver:
            yield

    def create_sink(self, place: Path) -> HttpSink:
        return HttpSink(
            f"{self.receiver.url}{place.name}",
            Json(),
            batch_records=self.batch_records,
            parallel=self.parallel,
        )

    def read_output(self, place: Path) -> list[Any]:
        accepted = [one for one in self.receiver.accepted if one.path == f"/{place.name}"]
        bodies = [json.loads(request.body) for request in accepted]
        if self.batch_records == 1:
            return bodies
        return [record for body in bodies for record in body]


class TestSingly(Conformance):
    pass


class TestInBatches(Conformance):
    batch_records = 3
    parallel = 4


def run(sink: HttpSink, records: list[Any], **settings: Any) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(records).sink_to(sink).uid("out")
    return env.execute("sending", in_process=True)


def publish(sink: HttpSink, *contents: bytes) -> None:
    target = sink.connect(SinkPlace("lineage", "out", "Sink"))
    try:
        target.publish(Marker(1), iter([["file", 0, None, list(contents)]]))
    finally:
        target.close()


def test_requests_have_keys_and_the_headers_of_the_program():
    with FakeReceiver() as receiver:
        base = receiver.url
        sink = HttpSink(
            lambda record: f"{base}{record['to']}",
            Json(),
            headers={"Authorization": lambda: "Bearer s3cret", "X-From": "penstock"},
        )
        run(sink, [{"to": "a", "n": 1}, {"to": "b", "n": 2}])
    assert [request.path for request in receiver.requests] == ["/a", "/b"]
    headers = receiver.requests[0].headers
    assert headers["Authorization"] == "Bearer s3cret" and headers["X-From"] == "penstock"
    assert headers["Content-Type"] == "application/json"
    keys = {request.headers["Idempotency-Key"] for request in receiver.requests}
    assert len(keys) == 2 and all("-out-" in key for key in keys)


@pytest.mark.parametrize(
    ("batch", "bodies", "kind"),
    [
        ("json", [b"[0,1,2]", b"[3,4]"], "application/json"),
        ("lines", [b"0\n1\n2\n", b"3\n4\n"], "application/x-ndjson"),
    ],
)
def test_batches(batch, bodies, kind):
    with FakeReceiver() as receiver:
        run(HttpSink(receiver.url, Json(), batch=batch, batch_records=3), list(range(5)))
    assert [request.body for request in receiver.requests] == bodies
    assert {request.headers["Content-Type"] for request in receiver.requests} == {kind}


def test_faults_of_the_receiver_and_the_network_lose_and_double_nothing():
    with FakeReceiver(Faulty(2)) as receiver:
        run(HttpSink(receiver.url, Json(), parallel=4), list(range(100)))
    accepted = Counter(json.loads(request.body) for request in receiver.accepted)
    assert accepted == Counter(range(100))
    assert len(receiver.requests) > 110, "there were no faults"
    bodies: dict[str, bytes] = {}
    for request in receiver.requests:
        key = request.headers["Idempotency-Key"]
        assert bodies.setdefault(key, request.body) == request.body


def test_a_rejected_request_ends_the_job_and_is_shown():
    with FakeReceiver(lambda request: 400 if request.body == b"2" else 200) as receiver:
        with pytest.raises(JobError, match="rejects a request with 400"):
            run(HttpSink(receiver.url, Json()), [1, 2, 3])
        with pytest.raises(JobError, match="rejects a request with 400") as error:
            publish(HttpSink(receiver.url), b"2")
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE
        assert "rejected='a-folder'" in str(error.value)


def test_rejected_requests_are_kept_in_a_file(tmp_path):
    with FakeReceiver(lambda request: 400 if request.body == b"2" else 200) as receiver:
        run(HttpSink(receiver.url, Json(), rejected=tmp_path / "rejected"), [1, 2, 3])
    [path] = (tmp_path / "rejected").iterdir()
    [kept] = map(json.loads, path.read_text().splitlines())
    assert kept["records"] == ["2"] and kept["status"] == 400 and kept["url"] == receiver.url
    assert [request.body for request in receiver.accepted] == [b"1", b"3"]
    assert kept["key"] == receiver.requests[1].headers["Idempotency-Key"]


def test_a_receiver_that_stays_away_is_an_error_of_the_environment():
    receiver = FakeReceiver().start()
    receiver.stop()
    with pytest.raises(JobError, match=r"did not succeed within 0.2 s") as error:
        publish(HttpSink(receiver.url, retry_seconds=0.2), b"1")
    assert error.value.recoverability is Recoverability.ENVIRONMENT


def test_records_without_a_format_are_text_or_bytes():
    with FakeReceiver() as receiver:
        run(HttpSink(receiver.url), ["text", b"bytes"])
        assert [request.body for request in receiver.accepted] == [b"text", b"bytes"]
        with pytest.raises(JobError, match="a record is int, and not text or bytes"):
            run(HttpSink(receiver.url), [1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "example.org"}, "URL"),
        ({"batch": "xml"}, "batch"),
        ({"batch_records": 0}, "at least 1"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"format": 1}, "SerializationSchema"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(GraphError, match=message):
        HttpSink(**{"url": "http://example.org", **options})
