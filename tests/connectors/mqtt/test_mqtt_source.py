"""`MqttSource` against Mosquitto: nothing is acknowledged too early, and nothing is lost."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import BAD_MESSAGES, Json, StreamExecutionEnvironment
from penstock.connectors.mqtt import MqttBroker, MqttMessage, MqttSink, MqttSource
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import SinkWriter, WriterContext
from penstock.dataflow.source import Read, ReaderContext, SourceReader
from penstock.testing.servers.mosquitto import MosquittoServer
from tests.connectors.proxy import Proxy
from tests.processes.harness import PATIENCE, wait_until


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


@pytest.fixture
def broker(mosquitto_server: MosquittoServer) -> MqttBroker:
    return MqttBroker(mosquitto_server.host, mosquitto_server.port)


class Readers:
    """Makes readers, and closes them."""

    def __init__(self) -> None:
        self.made: list[SourceReader] = []
        self.metrics = MetricGroup()

    def open(self, source: MqttSource, position: Any = None, share: int = 0) -> SourceReader:
        enumerator = source.create_enumerator(1)
        enumerator.start()
        splits = []
        while (split := enumerator.next_split(0)) is not None:
            splits.append(split)
        reader: Any = source.create_reader(ReaderContext("uid", 0, 1, self.metrics))
        subscribed, answered = threading.Event(), reader._on_subscribe
        reader._on_subscribe = lambda *arguments: (answered(*arguments), subscribed.set())
        reader.open(splits[share], position)
        self.made.append(reader)
        if position is None:
            assert reader.read(1000).records == []
            # What is published before would not come, and a read would wait without end.
            assert subscribed.wait(PATIENCE)
        return reader


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    for reader in made.made:
        reader.close()


@pytest.fixture
def publish(broker: MqttBroker) -> Iterator[Callable[..., None]]:
    """Publish, and wait until the broker has all."""
    writers: list[SinkWriter] = []

    def send(topic: str, *payloads: str, to: MqttBroker = broker, retain: bool = False) -> None:
        sink = MqttSink(to, topic, retain=retain)
        writer = sink.create_writer(WriterContext("uid", "name", 0, 1, 0, "lineage"))
        writers.append(writer)
        writer.open()
        writer.write(list(payloads))
        finish = writer.prepare(1)
        assert finish is not None
        finish()

    yield send
    for writer in writers:
        writer.close()


def subscribed(reader: SourceReader, publish: Callable[..., None], topic: str) -> Any:
    """Wait until messages arrive, by sending some; return the position behind them."""
    read = Read([], None)
    publish(topic, "subscribed?")
    for _ in range(1000):
        read = read_some(reader)
        if read.records:
            return read.position
        publish(topic, "subscribed?")
    raise AssertionError("no message has arrived")


def read_some(reader: SourceReader) -> Read:
    """Read, or return nothing after a short time: a read waits for messages."""
    found: list[Read] = []
    thread = threading.Thread(target=lambda: found.append(reader.read(1000)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "no read within the patience of the tests"
    return found[0]


def payloads(reader: SourceReader, count: int) -> tuple[list[str], Any]:
    texts: list[str] = []
    position = None
    while len(texts) < count:
        read = read_some(reader)
        texts += [message.payload.decode() for message in read.records]
        position = read.position
    return texts, position


def drain(reader: SourceReader, publish: Callable[..., None], topic: str) -> list[str]:
    """Return all that comes before a message that is sent now."""
    mark = uuid.uuid4().hex
    publish(topic, mark)
    texts: list[str] = []
    while mark not in texts:
        texts += [message.payload.decode() for message in read_some(reader).records]
    return texts[:-1]


def test_messages_come_again_until_a_snapshot_contains_them(name, broker, readers, publish):
    source = MqttSource(broker, f"{name}/#", name)
    reader = readers.open(source)
    reader.snapshot_completed(subscribed(reader, publish, f"{name}/x"))
    publish(f"{name}/a", *"12345")
    texts, position = payloads(reader, 5)
    assert texts == list("12345")
    reader.snapshot_completed([position[0] - 2, position[1]])
    reader.close()

    second = readers.open(source, position)
    again = drain(second, publish, f"{name}/a")
    # The broker takes the second connection before it has read all acknowledgements of the first.
    assert again[-2:] == ["4", "5"] and again != list("12345")


def test_a_read_message_is_not_acknowledged_by_reading(name, broker, readers, publish):
    source = MqttSource(broker, f"{name}/#", name)
    reader = readers.open(source, None)
    reader.snapshot_completed(subscribed(reader, publish, f"{name}/x"))
    reader.close()
    publish(f"{name}/x", "one")
    for _ in range(3):
        reader = readers.open(source, [0, [f"{name}/#"]])
        assert "one" in drain(reader, publish, f"{name}/x")
        reader.close()


def test_messages_of_the_time_without_a_reader_are_kept(name, broker, readers, publish):
    source = MqttSource(broker, f"{name}/#", name)
    reader = readers.open(source)
    position = subscribed(reader, publish, f"{name}/x")
    reader.snapshot_completed(position)
    reader.close()
    publish(f"{name}/a", *map(str, range(100)))
    texts = drain(readers.open(source, position), publish, f"{name}/a")
    assert [text for text in texts if text != "subscribed?"] == list(map(str, range(100)))


def test_a_cut_connection_is_made_again_and_doubles_nothing(
    name, mosquitto_server, readers, publish
):
    with Proxy(mosquitto_server.port) as proxy:
        cut = MqttBroker("127.0.0.1", proxy.port)
        reader = readers.open(MqttSource(cut, f"{name}/#", name))
        subscribed(reader, publish, f"{name}/x")
        for number in range(1, 4):
            publish(f"{name}/a", *map(str, range(50)))
            assert payloads(reader, 50)[0] == list(map(str, range(50)))
            proxy.cut()
            reconnects = readers.metrics.counter("numReconnects")
            wait_until(lambda c=reconnects, n=number: c.count >= n, "the source has reconnected")
        again = drain(reader, publish, f"{name}/a")
        assert [text for text in again if text != "subscribed?"] == []
        assert readers.metrics.counter("numMessagesSentAgain").count >= 50


def test_shares_divide_the_messages(name, broker, readers, publish):
    source = MqttSource(broker, f"{name}/#", name, shares=2)
    both = [readers.open(source, share=share) for share in range(2)]
    wanted = {str(number) for number in range(200)}
    for reader in both:
        # Until both subscriptions are there, one may get all.
        subscribed(reader, publish, f"{name}/x")
    publish(f"{name}/a", *wanted)
    found: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=collect, args=(r, f)) for r, f in zip(both, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: set(found[0]) | set(found[1]) >= wanted, "all messages came")
    for reader in both:
        reader.close()
    for thread in threads:
        thread.join()
    texts = [text for text in found[0] + found[1] if text != "subscribed?"]
    assert sorted(texts) == sorted(wanted)
    assert all(set(texts) - {"subscribed?"} for texts in found), "one had all of them"


def collect(reader: SourceReader, texts: list[str]) -> None:
    while not reader._closed:
        texts += [message.payload.decode() for message in reader.read(1000).records]


def test_a_filter_that_the_program_no_longer_has_is_unsubscribed(name, broker, readers, publish):
    old = readers.open(MqttSource(broker, [f"{name}/a", f"{name}/b"], name))
    position = subscribed(old, publish, f"{name}/b")
    old.snapshot_completed(position)
    old.close()
    new = readers.open(MqttSource(broker, [f"{name}/a"], name), position)
    drain(new, publish, f"{name}/a")
    publish(f"{name}/b", "not wanted")
    assert "not wanted" not in drain(new, publish, f"{name}/a")


def test_retained_messages_come_once_and_say_so(name, broker, readers, publish):
    publish(f"{name}/kept", "last", retain=True)
    source = MqttSource(broker, f"{name}/#", name)
    reader = readers.open(source)
    read = read_some(reader)
    assert read.records == [MqttMessage(f"{name}/kept", b"last", retained=True)]
    reader.snapshot_completed(read.position)
    reader.close()
    again = readers.open(source, read.position)
    assert drain(again, publish, f"{name}/x") == []


def test_bad_messages_of_a_format_go_to_the_side_output(name, broker, readers, publish):
    source = MqttSource(broker, f"{name}/#", name, Json(on_error="side_output"))
    reader = readers.open(source)
    publish(f"{name}/x", "1")
    while not read_some(reader).records:
        publish(f"{name}/x", "1")
    publish(f"{name}/x", '{"a": 1}', "none", "[2]")
    records: list[Any] = []
    bad: list[Any] = []
    while [2] not in records:
        read = read_some(reader)
        records += read.records
        bad += read.side_output
    assert [record for record in records if record != 1] == [{"a": 1}, [2]]
    [(tag, message)] = bad
    assert tag == BAD_MESSAGES and message.message == b"none" and f"{name}/x" in message.place


def test_a_lost_session_is_refused_after_a_restart_unless_told_otherwise(
    name, broker, readers, publish
):
    with pytest.raises(JobError, match="has lost the session") as error:
        reader = readers.open(MqttSource(broker, f"{name}/#", name), [5, [f"{name}/#"]])
        reader.read(1)
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    assert "on_lost_session='continue'" in str(error.value)
    # Another name, since the broker may need a moment to remove the session of the first one.
    going_on = MqttSource(broker, f"{name}/#", f"{name}b", on_lost_session="continue")
    reader = readers.open(going_on, [5, [f"{name}/#"]])
    assert subscribed(reader, publish, f"{name}/x")[0] > 5
    assert readers.metrics.counter("numLostSessions").count == 2


def test_a_broker_that_cannot_be_reached_is_an_error_of_the_environment(name, readers):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        broker = MqttBroker("127.0.0.1", port, unreachable_seconds=0.5)
        with pytest.raises(JobError, match=f"127.0.0.1:{port} was not reached for 0.5 s") as error:
            readers.open(MqttSource(broker, "a", name))
        assert error.value.recoverability is Recoverability.ENVIRONMENT


def test_wrong_credentials_end_the_job(name, readers, tmp_path):
    server = MosquittoServer(tmp_path)
    server.settings = ("allow_anonymous false",)
    with server:
        broker = MqttBroker(server.host, server.port, username="ann", password=lambda: "wrong")
        assert "wrong" not in repr(broker)
        with pytest.raises(JobError, match="refuses the connection: Not authorized") as error:
            readers.open(MqttSource(broker, "a", name))
        assert error.value.recoverability is Recoverability.NON_RECOVERABLE
        assert "'ann'" in str(error.value)


def test_a_broker_that_restarts_keeps_the_session(name, readers, publish, tmp_path):
    with MosquittoServer(tmp_path) as server:
        broker = MqttBroker(server.host, server.port)
        reader = readers.open(MqttSource(broker, f"{name}/#", name))
        publish(f"{name}/x", "0", to=broker)
        while not read_some(reader).records:
            publish(f"{name}/x", "0", to=broker)
        publish(f"{name}/x", *"123", to=broker)
        server.stop()
        server.start()
        publish(f"{name}/x", *"456", to=broker)
        texts: list[str] = []
        while "6" not in texts:
            texts += [message.payload.decode() for message in read_some(reader).records]
        assert [text for text in texts if text != "0"] == list("123456")


@pytest.mark.parametrize("topic", ["", "a/#/b", "a+", "#a", "$share/g/a"])
def test_a_wrong_filter_is_refused(topic):
    with pytest.raises(GraphError, match="topic filter"):
        MqttSource("localhost", topic, "me")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"client_id": ""}, "needs a client id"),
        ({"client_id": "a/b"}, "needs a client id"),
        ({"shares": 0}, "shares"),
        ({"session_expiry_seconds": 0}, "session_expiry_seconds"),
        ({"receive_maximum": 0}, "receive_maximum"),
        ({"on_lost_session": "ignore"}, "on_lost_session"),
        ({"format": bytes}, "DeserializationSchema"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        MqttSource("localhost", "a", **{"client_id": "me", **arguments})


def test_a_job_without_snapshots_is_refused():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(MqttSource("localhost", "a", "me")).print()
    with pytest.raises(GraphError, match="acknowledges its input with snapshots"):
        env.execute("never acknowledges")
