"""`MqttSink` against Mosquitto: a barrier waits for all acknowledgements."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock import Json
from penstock.connectors.mqtt import MqttBroker, MqttSink
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.mosquitto import MosquittoServer
from tests.processes.harness import PATIENCE, wait_until

CONTEXT = WriterContext("uid", "name", 0, 1, 0, "lineage")


class Subscriber:
    """Receives messages, as another program does."""

    def __init__(self, broker: MqttBroker, topic: str) -> None:
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion

        self.messages: list[tuple[str, bytes]] = []
        #: The messages that the broker had kept before this subscription.
        self.retained: list[tuple[str, bytes]] = []
        subscribed = threading.Event()
        self.client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        self.client.on_message = self._received
        self.client.on_connect = lambda client, *_: client.subscribe(topic, 1)
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.connect(broker.host, broker.port)
        self.client.loop_start()
        assert subscribed.wait(PATIENCE)

    def _received(self, _client: Any, _data: Any, message: Any) -> None:
        received = (message.topic, bytes(message.payload))
        self.messages.append(received)
        if message.retain:
            self.retained.append(received)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def broker(mosquitto_server: MosquittoServer) -> MqttBroker:
    return MqttBroker(mosquitto_server.host, mosquitto_server.port)


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


def finish(writer: Any) -> None:
    done = writer.prepare(1)
    if done is not None:
        assert done() == []


class TestRetained(SinkConformance):
    """A topic for each record, whose last message is kept: writing it again changes nothing."""

    @pytest.fixture(autouse=True)
    def _broker(self, broker: MqttBroker) -> None:
        self.broker = broker

    def create_sink(self, place: Path) -> MqttSink:
        return MqttSink(self.broker, Topic(place.name), retain=True)

    def read_output(self, place: Path) -> list[str]:
        # A killed writer may still have messages on their way, which come after the retained ones
        # and repeat them. The output is the table that the broker keeps.
        end = f"{place.name}/end"
        with Subscriber(self.broker, f"{place.name}/#") as subscriber:
            subscriber.client.publish(end, "end", 1)
            wait_until(lambda: (end, b"end") in subscriber.messages, "all retained messages came")
            return [content.decode() for _, content in subscriber.retained]

    def test_records_behind_the_last_barrier_are_discarded_when_a_writer_closes(self) -> None:
        """It does not hold for this sink, since it publishes at once. A writer can close twice."""
        writer = MqttSink(self.broker, "closed").create_writer(CONTEXT)
        writer.open()
        writer.write(["x"])
        writer.close()
        writer.close()


class Topic:
    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, record: str) -> str:
        return f"{self.place}/{record}"


def test_records_are_published_in_order_with_few_in_flight(name, broker):
    with Subscriber(broker, f"{name}/#") as subscriber:
        writer = MqttSink(broker, f"{name}/x", Json(), max_in_flight=3).create_writer(CONTEXT)
        writer.open()
        for start in range(0, 500, 50):
            writer.write([{"n": number} for number in range(start, start + 50)])
        finish(writer)
        wait_until(lambda: len(subscriber.messages) >= 500, "all messages came")
        wanted = [(f"{name}/x", b'{"n":%d}' % number) for number in range(500)]
        assert subscriber.messages == wanted
        writer.close()


def test_a_barrier_waits_until_the_broker_is_back(name, tmp_path):
    with MosquittoServer(tmp_path) as server:
        broker = MqttBroker(server.host, server.port)
        writer = MqttSink(broker, f"{name}/x", retain=True).create_writer(CONTEXT)
        writer.open()
        writer.write(["first"])
        finish(writer)
        server.stop()
        writer.write(["second"])
        done = threading.Event()
        waiting = threading.Thread(target=lambda: (finish(writer), done.set()))
        waiting.start()
        assert not done.wait(0.3)
        server.start()
        waiting.join(PATIENCE)
        assert done.is_set()
        with Subscriber(broker, f"{name}/x") as subscriber:
            wait_until(lambda: subscriber.messages == [(f"{name}/x", b"second")], "it is there")
        writer.close()


def test_a_broker_that_does_not_answer_is_an_error_of_the_environment(name, tmp_path):
    with MosquittoServer(tmp_path) as server:
        broker = MqttBroker(server.host, server.port, unreachable_seconds=1)
        writer = MqttSink(broker, f"{name}/x").create_writer(CONTEXT)
        writer.open()
        writer.write(["first"])
        finish(writer)
        server.pause()
        try:
            writer.write(["second"])
            with pytest.raises(JobError, match="has acknowledged nothing for 1 s") as error:
                finish(writer)
            assert error.value.recoverability is Recoverability.ENVIRONMENT
        finally:
            server.resume()
            writer.close()


def test_an_oversize_record_and_a_refused_topic_end_the_job(name, tmp_path):
    server = MosquittoServer(tmp_path)
    rules = tmp_path / "rules"
    rules.write_text("topic write allowed\n")
    server.settings = ("allow_anonymous true", "max_packet_size 1000", f"acl_file {rules}")
    with server:
        broker = MqttBroker(server.host, server.port)
        for topic, record, message in (
            ("allowed", "x" * 2000, "it takes 1000 bytes at most"),
            ("denied", "x", "Not authorized"),
        ):
            writer = MqttSink(broker, topic).create_writer(CONTEXT)
            writer.open()
            writer.write(["x"] if topic == "allowed" else [])
            finish(writer)
            with pytest.raises(JobError, match=message) as error:
                writer.write([record])
                finish(writer)
            assert error.value.recoverability is Recoverability.NON_RECOVERABLE
            assert topic in str(error.value)
            writer.close()


@pytest.mark.parametrize(
    ("topic", "record", "message"),
    [
        ("a", 17, "it is int, and not text or bytes"),
        (lambda record: "a/+", "x", "it contains"),
        (lambda record: "", "x", "it is empty"),
        (lambda record: None, "x", "it is of type NoneType"),
    ],
)
def test_a_record_without_a_message_ends_the_job(broker, topic, record, message):
    writer = MqttSink(broker, topic).create_writer(CONTEXT)
    writer.open()
    with pytest.raises(JobError, match=message) as error:
        writer.write([record])
    assert error.value.recoverability is Recoverability.NON_RECOVERABLE
    writer.close()


@pytest.mark.parametrize(
    "arguments",
    [{"topic": "a/#"}, {"topic": 3}, {"max_in_flight": 0}, {"max_waiting": 0}, {"format": 1}],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(GraphError):
        MqttSink("localhost", **{"topic": "a", **arguments})
