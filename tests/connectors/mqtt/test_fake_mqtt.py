"""The fake broker behaves like a broker, as far as source and sink need it."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import Any

import pytest

from penstock import SimpleStringSchema, StreamExecutionEnvironment
from penstock.connectors.mqtt import MqttBroker, MqttMessage, MqttSink, MqttSource
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors.fake_mqtt import FakeMqttBroker, matches
from tests.processes.harness import wait_until


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a", "a", True),
        ("a", "a/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("a/b/c", "a/b", False),
    ],
)
def test_topics_match_filters(topic_filter, topic, expected):
    assert matches(topic_filter, topic) is expected


class Reading:
    def __init__(self, fake: FakeMqttBroker) -> None:
        self.metrics = MetricGroup()
        self.fake = fake
        self.made: list[Any] = []

    def open(self, position: Any = None, **options: Any) -> Any:
        source = MqttSource(MqttBroker(self.fake.host, self.fake.port), "t/#", "me", **options)
        reader: Any = source.create_reader(ReaderContext("uid", 0, 1, self.metrics))
        split = source.create_enumerator(1).next_split(0)
        assert split is not None
        reader.open(split, position)
        self.made.append(reader)

        def is_subscribed() -> bool:
            reader._connection.check()
            session = self.fake._sessions.get(split.id)
            return session is not None and bool(session.filters)

        wait_until(is_subscribed, "it has subscribed")
        return reader


@pytest.fixture
def fake():
    with FakeMqttBroker() as broker:
        yield broker


@pytest.fixture
def reading(fake):
    made = Reading(fake)
    yield made
    for reader in made.made:
        reader.close()


def read(reader: Any, count: int) -> tuple[list[bytes], Any]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        found = reader.read(100)
        payloads += [message.payload for message in found.records]
    return payloads, found.position


def test_messages_are_kept_until_they_are_acknowledged(fake, reading):
    first = reading.open()
    for number in range(5):
        fake.publish("t/a", b"%d" % number)
    payloads, position = read(first, 5)
    assert payloads == [b"0", b"1", b"2", b"3", b"4"] and fake.unacknowledged("me") == 5
    first.snapshot_completed([3, position[1]])
    wait_until(lambda: fake.unacknowledged("me") == 2, "three are acknowledged")
    first.close()
    fake.publish("t/a", b"5")
    assert read(reading.open(position), 3)[0] == [b"3", b"4", b"5"]


def test_a_cut_connection_and_a_restart_double_nothing(fake, reading):
    reader = reading.open()
    fake.publish("t/a", b"0")
    assert read(reader, 1)[0] == [b"0"]
    for number, disturb in enumerate((fake.cut, lambda: (fake.stop(), fake.start())), 1):
        disturb()
        fake.publish("t/a", b"%d" % number)
        assert read(reader, 1)[0] == [b"%d" % number]
    assert reading.metrics.counter("numMessagesSentAgain").count >= 1


def test_retained_messages_and_other_topics(fake, reading):
    fake.publish("t/kept", b"last", retain=True)
    fake.publish("other", b"x", retain=True)
    reader = reading.open()
    records: list[Any] = []
    while not records:
        records = reader.read(10).records
    assert records == [MqttMessage("t/kept", b"last", retained=True)]


def test_a_process_may_have_more_open_files_than_select_can_wait_for(fake, reading):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1024):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        reader = reading.open()
        fake.publish("t/a", b"0")
        assert read(reader, 1)[0] == [b"0"] and reader._connection.client.socket().fileno() >= 1024
        reader.close()


def test_a_job_writes_to_it(fake):
    env = StreamExecutionEnvironment.get_execution_environment()
    sink = MqttSink(MqttBroker(fake.host, fake.port), "out", SimpleStringSchema())
    env.from_collection(["a", "b"]).sink_to(sink)
    env.execute("writing", in_process=True)
    assert fake.published == [("out", b"a"), ("out", b"b")]
