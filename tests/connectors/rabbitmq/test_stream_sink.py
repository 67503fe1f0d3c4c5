"""`RabbitStreamSink` against RabbitMQ: the stream leaves out what it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.connectors.rabbitmq import RabbitBroker, RabbitStreamSink
from penstock.connectors.rabbitmq.publishing_ids import numbered
from penstock.connectors.rabbitmq.stream_connection import StreamLostError
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.rabbitmq import RabbitServer
from tests.connectors.rabbitmq.streams import bodies, create_stream
from tests.processes.harness import PATIENCE

PLACE = SinkPlace("lineage", "out", "Sink")


@pytest.fixture
def broker(rabbitmq_server: RabbitServer) -> RabbitBroker:
    return RabbitBroker(rabbitmq_server.host, rabbitmq_server.port)


@pytest.mark.connectors
class TestConformance(SinkConformance):
    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def _broker(self, broker: RabbitBroker) -> None:
        self.broker = broker
        self.created: set[str] = set()

    def create_sink(self, place: Path) -> RabbitStreamSink:
        if place.name not in self.created:
            create_stream(self.broker, place.name)
            self.created.add(place.name)
        return RabbitStreamSink(self.broker, place.name)

    def read_output(self, place: Path) -> list[str]:
        return bodies(self.broker, place.name)


class Sink:
    """A sink whose targets are closed at the end."""

    def __init__(self, broker: RabbitBroker, stream: str) -> None:
        self.sink = RabbitStreamSink(broker, stream)
        self.targets: list = []

    def connect(self):
        self.targets.append(self.sink.connect(PLACE))
        return self.targets[-1]

    def staged(self, *texts: str):
        encode = self.sink.create_encoder(WriterContext("out", "Sink", 0, 1, 0, "lineage"))
        return iter([encode(list(texts))])


@pytest.fixture
def sink(broker):
    made = Sink(broker, create_stream(broker))
    made.broker = broker
    made.read = lambda: bodies(broker, made.sink.stream)
    yield made
    for target in made.targets:
        target.close()


def test_the_publishing_id_is_the_marker(sink):
    target = sink.connect()
    assert target.fence() is None
    target.publish(Marker(3, "aa"), sink.staged("a", "b"))
    assert sink.connect().fence() == Marker(3)
    target.publish(Marker(4, "bb"), sink.staged("c"))
    assert sink.connect().fence() == Marker(4)
    assert sink.read() == ["a", "b", "c"]
    assert sink.sink.connect(SinkPlace("lineage", "other", "Sink")).close() is None


def test_a_part_of_a_snapshot_is_completed_by_the_next_publisher(sink):
    target = sink.connect()
    target.fence()
    target.publish(Marker(1, "aa"), sink.staged("a"))
    only_part = list(numbered(2, "bb", next(sink.staged("b", "c", "d"))))[:2]
    target._call(target._publish(iter(only_part)))
    again = sink.connect()
    assert again.fence() == Marker(1)
    again.publish(Marker(2, "bb"), sink.staged("b", "c", "d"))
    assert sink.read() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("number", "digest"), [(2, "cc"), (3, "bb")])
def test_a_part_of_another_output_is_refused(sink, number, digest):
    target = sink.connect()
    target.fence()
    only_part = list(numbered(2, "bb", next(sink.staged("b", "c"))))[:1]
    target._call(target._publish(iter(only_part)))
    again = sink.connect()
    again.fence()
    with pytest.raises(JobError, match="a part of the output of snapshot 2") as error:
        again.publish(Marker(number, digest), sink.staged("x"))
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    assert sink.read() == ["b"]


def test_an_old_publisher_beside_a_new_one_changes_nothing(sink):
    old, new = sink.connect(), sink.connect()
    texts = [f"{n}" for n in range(3000)]
    for target in (old, new):
        target.fence()
    tasks = [
        target._bridge.start(target._publish(numbered(1, "aa", next(sink.staged(*texts)))))
        for target in (old, new)
    ]
    for task in tasks:
        task.result(PATIENCE)
    new.publish(Marker(2, "bb"), sink.staged("after"))
    old.publish(Marker(1, "aa"), sink.staged(*texts))
    assert sink.read() == [*texts, "after"]


def test_a_lost_connection_is_an_error_and_the_next_one_goes_on(sink):
    target = sink.connect()
    target.fence()
    target._bridge.call(fail(target._connection))
    with pytest.raises(JobError, match="cut") as error:
        target.publish(Marker(1, "aa"), sink.staged("a"))
    assert error.value.recoverability is Recoverability.ENVIRONMENT
    again = sink.connect()
    again.fence()
    again.publish(Marker(1, "aa"), sink.staged("a"))
    assert sink.read() == ["a"]


async def fail(connection):
    connection.fail(StreamLostError("cut"))


def test_a_missing_stream_wrong_credentials_and_a_message_without_a_frame(broker, sink):
    wrong = RabbitBroker(broker.host, broker.port, password="wrong")
    for other, message in (
        (RabbitStreamSink(broker, "no-such-stream"), "has no stream 'no-such-stream'"),
        (RabbitStreamSink(wrong, sink.sink.stream), "refuses user 'guest'"),
    ):
        target = other.connect(PLACE)
        with pytest.raises(JobError, match=message) as error:
            target.fence()
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE
        target.close()
    target = sink.connect()
    target.fence()
    with pytest.raises(JobError, match="does not fit into a frame") as error:
        target.publish(Marker(1, "aa"), sink.staged("x" * (2 << 20)))
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE


def test_records_are_text_or_bytes_unless_there_is_a_format(sink):
    encode = sink.sink.create_encoder(WriterContext("out", "Sink", 0, 1, 0, "lineage"))
    with pytest.raises(JobError, match="a record is int, and not text or bytes"):
        encode([1])


def test_wrong_arguments_are_refused():
    with pytest.raises(GraphError, match="name of a stream"):
        RabbitStreamSink("localhost", "")
    with pytest.raises(GraphError, match="SerializationSchema"):
        RabbitStreamSink("localhost", "x", bytes)
    with pytest.raises(GraphError, match="port"):
        RabbitBroker("localhost", 70_000)
