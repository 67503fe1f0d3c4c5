"""`RabbitStreamSource` against RabbitMQ: every message once, from every offset."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import BAD_MESSAGES, Json, SimpleStringSchema
from penstock.connectors.rabbitmq import RabbitBroker, RabbitStreamSource
from penstock.connectors.rabbitmq.amqp_body import encode_body
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance
from penstock.testing.servers.rabbitmq import RabbitServer
from tests.connectors.proxy import Proxy
from tests.connectors.rabbitmq.streams import create_stream, delete_stream, publish
from tests.processes.harness import PATIENCE, wait_until


@pytest.fixture
def broker(rabbitmq_server: RabbitServer) -> RabbitBroker:
    return RabbitBroker(rabbitmq_server.host, rabbitmq_server.port)


def contents(*texts: str) -> list[bytes]:
    return [encode_body(text.encode()) for text in texts]


class TestConformance(SourceConformance):
    limit = 20
    parallelisms = (1, 2)

    @pytest.fixture(autouse=True)
    def _stream(self, broker: RabbitBroker) -> None:
        self.broker, self.stream = broker, create_stream(broker)
        publish(broker, self.stream, contents(*self.expected()), at_once=4)

    def create_source(self) -> RabbitStreamSource:
        return RabbitStreamSource(self.broker, self.stream, SimpleStringSchema())

    def expected(self) -> list[str]:
        return [f"message {number}" for number in range(20)]


class Readers:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self.metrics = MetricGroup()

    def __call__(self, source: RabbitStreamSource, position: Any = None) -> Any:
        reader = source.create_reader(ReaderContext("uid", 0, 1, self.metrics))
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


def read(reader: Any, count: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < count:
        records += reader.read(count - len(records)).records
    return records


def test_messages_have_offsets_times_and_bodies(broker, open_reader):
    stream = create_stream(broker)
    publish(broker, stream, contents("a", "b"), at_once=1)
    reader = open_reader(RabbitStreamSource(broker, stream))
    first = reader.read(1)
    [message] = first.records
    assert (message.body, message.offset, message.stream) == (b"a", 0, stream)
    assert first.position == 1 and first.timestamps == [message.timestamp]
    assert abs(message.timestamp / 1000 - time.time()) < 600
    assert read(reader, 1)[0].body == b"b"


@pytest.mark.parametrize("start", ["first", "last", "next", 3, "time"])
def test_a_new_job_begins_where_it_is_told(broker, open_reader, start):
    stream = create_stream(broker)
    publish(broker, stream, contents("0", "1"))
    threading.Event().wait(0.05)  # between the times of two chunks
    middle = datetime.now(UTC)
    publish(broker, stream, contents("2", "3", "4"))
    where: Any = middle if start == "time" else start
    reader = open_reader(RabbitStreamSource(broker, stream, SimpleStringSchema(), start=where))
    wait_until(lambda: reader._subscribed, "it has subscribed")
    publish(broker, stream, contents("5"))
    found = ""
    while not found.endswith("5"):
        found += "".join(reader.read(10).records)
    # "last" is the newest chunk, which the broker has made as it liked.
    wanted = {"first": "012345", "last": "45", "next": "5", 3: "345", "time": "2345"}[start]
    assert found == wanted or (start == "last" and "012345".endswith(found) and len(found) > 1)


@pytest.mark.connectors
def test_cut_connections_and_restarts_lose_and_double_nothing(open_reader, tmp_path):
    with RabbitServer(tmp_path) as server, Proxy(server.port) as proxy:
        direct = RabbitBroker(server.host, server.port)
        stream = create_stream(direct)
        cut = RabbitBroker("127.0.0.1", proxy.port, unreachable_seconds=PATIENCE)
        reader = open_reader(RabbitStreamSource(cut, stream, SimpleStringSchema()))
        found: list[str] = []
        for turn in range(4):
            if turn == 2:
                server.stop()
                server.start()
            elif turn:
                proxy.cut()
            texts = [f"{turn}/{number}" for number in range(50)]
            wait_until(lambda t=texts: published(direct, stream, t), "the broker stores", every=0.3)
            found += read(reader, 50)
        assert found == [f"{turn}/{number}" for turn in range(4) for number in range(50)]
        assert open_reader.metrics.counter("numReconnects").count >= 2


def published(broker: RabbitBroker, stream: str, texts: list[str]) -> bool:
    """Publish, as soon as the stream is available after a start of the broker."""
    from rstream.exceptions import ServerError

    try:
        publish(broker, stream, contents(*texts), at_once=50)
    except (OSError, ServerError):
        return False
    return True


def test_a_position_that_the_retention_has_removed_is_refused(broker, open_reader):
    stream = create_stream(broker, max_length_bytes=20_000, stream_max_segment_size_bytes=5_000)
    for turn in range(30):
        publish(broker, stream, contents(*[f"{turn}/{n}/" + "x" * 1000 for n in range(5)]))
    first = read(open_reader(RabbitStreamSource(broker, stream)), 1)[0].offset
    assert first > 5
    with pytest.raises(JobError, match=f"the offsets 3 to {first - 1} any more") as error:
        open_reader(RabbitStreamSource(broker, stream), 3).read(1)
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    going_on = RabbitStreamSource(broker, stream, on_lost_position="earliest")
    assert read(open_reader(going_on, 3), 1)[0].offset == first


def test_a_stream_that_was_created_again_is_refused(broker, open_reader):
    stream = create_stream(broker)
    publish(broker, stream, contents(*"abcdef"))
    delete_stream(broker, stream)
    create_stream(broker, stream)
    reader = open_reader(RabbitStreamSource(broker, stream), 6)
    failed: list[BaseException] = []

    def read_on() -> None:
        try:
            reader.read(1)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read_on)
    thread.start()
    wait_until(lambda: publish(broker, stream, contents("x")) or failed, "it is noticed", every=0.1)
    thread.join()
    assert "deleted and created again" in str(failed[0])


def test_bad_messages_go_to_the_side_output(broker, open_reader):
    stream = create_stream(broker)
    publish(broker, stream, contents("1", "none", "2"))
    reader = open_reader(RabbitStreamSource(broker, stream, Json(on_error="side_output")))
    found = reader.read(10)
    assert found.records == [1, 2] and found.position == 3
    [(tag, message)] = found.side_output
    assert tag == BAD_MESSAGES and message.place == f"stream {stream}, offset 1"


def test_what_no_retry_mends_ends_the_job(broker, open_reader):
    wrong = RabbitBroker(broker.host, broker.port, password=lambda: "wrong")
    for source, message in (
        (RabbitStreamSource(wrong, "x"), "refuses user 'guest'"),
        (RabbitStreamSource(broker, "no-such-stream"), "has no stream 'no-such-stream'"),
    ):
        with pytest.raises(JobError, match=message) as error:
            open_reader(source).read(1)
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    assert "wrong" not in repr(wrong)


def test_a_broker_that_cannot_be_reached_is_an_error_of_the_environment(open_reader):
    broker = RabbitBroker("127.0.0.1", 1, unreachable_seconds=0.3)
    with pytest.raises(JobError, match=r"for 0\.3 s: RabbitMQ at .* cannot be") as error:
        open_reader(RabbitStreamSource(broker, "x")).read(1)
    assert error.value.recoverability is Recoverability.ENVIRONMENT


def test_a_reader_that_waits_can_be_closed(broker, open_reader):
    reader = open_reader(RabbitStreamSource(broker, create_stream(broker)))
    thread = threading.Thread(target=reader.read, args=(1,))
    thread.start()
    wait_until(lambda: reader._subscribed, "it has subscribed")
    reader.close()
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": []}, "needs different streams"),
        ({"streams": ["a", "a"]}, "needs different streams"),
        ({"start": "yesterday"}, "start"),
        ({"start": -1}, "start"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),
        ({"on_lost_position": "ignore"}, "on_lost_position"),
        ({"format": bytes}, "DeserializationSchema"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        RabbitStreamSource("localhost", **{"streams": "a", **arguments})
