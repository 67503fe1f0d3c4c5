"""Streams are read once from each position; what is removed, wrong or away is said."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import ProcessFunction, StreamExecutionEnvironment, WatermarkStrategy
from penstock.connectors.bad_messages import BAD_MESSAGES
from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsMessage, NatsOffsets, NatsStreamSource
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.source import ReaderContext, Split
from penstock.testing.connectors import SourceConformance
from penstock.testing.servers.nats import NatsServer, NatsServerWithPassword
from tests.processes.harness import wait_until

pytest.importorskip("nats")
from tests.connectors.nats.streams import Streams


@pytest.fixture
def streams(nats_server: NatsServer) -> Iterator[Streams]:
    with Streams(nats_server.url) as streams:
        yield streams


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of a stream that no other test has."""
    return re.sub(r"\W", "_", f"{request.node.name[:40]}_{tmp_path.name[-20:]}_{id(request)}")


def number(message: NatsMessage) -> int:
    return int(message.data)


class Reading:
    """Reads the first split of a source as a task does."""

    def __init__(self, source: NatsStreamSource[Any], position: Any = None) -> None:
        self.source = source
        enumerator = source.create_enumerator(1)
        enumerator.start()
        split = enumerator.next_split(0)
        assert split is not None
        self.split: Split = split
        self.metrics = MetricGroup()
        self.reader = source.create_reader(ReaderContext("source", 0, 1, self.metrics))
        self.reader.open(split, position)
        self.position: Any = position

    def read(self, count: int) -> list[Any]:
        """Read exactly so many records."""
        records: list[Any] = []
        while len(records) < count:
            records += self.step(count - len(records))
        return records

    def step(self, count: int = 1_000) -> list[Any]:
        read = self.reader.read(count)
        self.position = read.position
        return read.records

    def again(self, **options: Any) -> Reading:
        """Return a reading that begins at the position of this one."""
        source = self.source
        options = {"subjects": None if source.subjects == [">"] else source.subjects, **options}
        new = NatsStreamSource(source.stream, source.connection, decode=number, **options)
        reading = object.__new__(Reading)
        reading.source, reading.split, reading.position = new, self.split, self.position
        reading.metrics = MetricGroup()
        reading.reader = new.create_reader(ReaderContext("source", 0, 1, reading.metrics))
        reading.reader.open(self.split, self.position)
        return reading


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the readers of a test."""
    made: list[Any] = []
    original = NatsStreamSource.create_reader

    def create_reader(self: Any, context: ReaderContext) -> Any:
        made.append(original(self, context))
        return made[-1]

    monkeypatch.setattr(NatsStreamSource, "create_reader", create_reader)
    yield
    for reader in made:
        reader.close()


class TestSubjects(SourceConformance):
    @pytest.fixture(autouse=True)
    def fill(self, streams: Streams, name: str, nats_server: NatsServer) -> None:
        self.stream, self.url = streams.make(name), nats_server.url
        for i in range(16):
            streams.publish(f"{name}.{i % 3}", [i])

    def create_source(self) -> Any:
        subjects = [f"{self.stream}.{i}" for i in range(3)]
        return NatsStreamSource(
            self.stream, self.url, subjects=subjects, decode=number, bounded=True, fetch_size=5
        )

    def expected(self) -> list[int]:
        return list(range(16))


class TestAStream(TestSubjects):
    limit = 16

    def create_source(self) -> Any:
        return NatsStreamSource(self.stream, self.url, decode=number, fetch_size=5)


class Timed(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.timestamp(), value


def test_a_bounded_job_reads_headers_and_times(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.call(streams.js.publish(f"{name}.a", b"tea", headers={"Origin": "Assam"}))
    [stored] = streams.messages(name)
    env = StreamExecutionEnvironment.get_execution_environment()
    source = NatsStreamSource(
        name,
        nats_server.url,
        decode=lambda m: (m.subject, m.sequence, m.data, dict(m.headers)),
        bounded=True,
    )
    records = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "orders")
    with records.process(Timed()).execute_and_collect() as results:
        [(timestamp, record)] = results
    assert record == (f"{name}.a", 1, b"tea", {"Origin": "Assam"})
    assert timestamp == int(stored.metadata.timestamp.timestamp() * 1000)


def test_a_job_begins_where_it_is_told(streams: Streams, name: str, nats_server: NatsServer):
    streams.make(name)
    streams.publish(f"{name}.a", range(4))
    times = [int(m.metadata.timestamp.timestamp() * 1000) for m in streams.messages(name)]
    for start, expected in (
        (NatsOffsets.earliest(), [0, 1, 2, 3]),
        (NatsOffsets.at_sequence(2), [1, 2, 3]),
        (NatsOffsets.at_sequence(1), [0, 1, 2, 3]),
        (NatsOffsets.at_timestamp(times[0]), [0, 1, 2, 3]),
        (NatsOffsets.at_timestamp(times[-1] + 100_000), []),
        (NatsOffsets.latest(), []),
    ):
        source = NatsStreamSource(name, nats_server.url, decode=number, start=start, bounded=True)
        reading = Reading(source)
        assert reading.read(len(expected)) == expected, start
        assert reading.reader.read(1).finished


def test_latest_is_found_out_when_the_job_is_started(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", range(3))
    start = NatsOffsets.latest()
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number, start=start))
    streams.publish(f"{name}.a", [3, 4])
    assert reading.read(2) == [3, 4]


def test_an_empty_stream_ends_at_once_or_is_waited_for(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    assert Reading(NatsStreamSource(name, nats_server.url, bounded=True)).reader.read(1).finished
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number))
    assert reading.step() == []
    streams.publish(f"{name}.a", [7])
    assert reading.read(1) == [7]


def test_a_split_without_messages_ends(streams: Streams, name: str, nats_server: NatsServer):
    streams.make(name)
    streams.publish(f"{name}.a", [1])
    source = NatsStreamSource(name, nats_server.url, subjects=[f"{name}.b"], bounded=True)
    reading = Reading(source)
    while not (read := reading.reader.read(1)).finished:
        assert read.records == []


# ---- messages that were removed


def test_removal_behind_the_reader_is_fine_and_beyond_it_is_refused(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", range(10))
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number, fetch_size=2))
    assert reading.read(4) == [0, 1, 2, 3]
    streams.call(streams.js.purge_stream(name, seq=5))
    assert reading.again().read(6) == [4, 5, 6, 7, 8, 9]
    streams.call(streams.js.purge_stream(name, seq=8))
    with pytest.raises(JobError, match="has removed the messages 5 to 7 before") as caught:
        reading.again().step()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    going_on = reading.again(on_lost_position="earliest")
    assert going_on.read(3) == [7, 8, 9]
    assert going_on.metrics.counter("numPositionsLost").get_count() == 1


def test_removal_in_front_of_a_slow_reader_is_noticed_while_it_reads(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name, max_msgs=10)
    streams.publish(f"{name}.a", range(10))
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number, fetch_size=2))
    assert reading.read(2) == [0, 1]
    streams.publish(f"{name}.a", range(10, 30))
    with pytest.raises(JobError, match="has removed the messages 3 to 20 before"):
        reading.read(2)


def test_messages_that_are_deleted_one_by_one_are_counted(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", range(6))
    for sequence in (3, 4):
        streams.call(streams.js.delete_msg(name, sequence))
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number))
    assert reading.read(4) == [0, 1, 4, 5]
    assert reading.metrics.counter("numMessagesDeleted").get_count() == 2


def test_messages_of_other_subjects_may_be_removed_while_a_reader_waits(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", [1])
    streams.publish(f"{name}.b", range(50))
    source = NatsStreamSource(name, nats_server.url, subjects=[f"{name}.a"], decode=number)
    reading = Reading(source)
    assert reading.read(1) == [1]
    while reading.position[0] < 51:
        assert reading.step() == []
    streams.call(streams.js.purge_stream(name, seq=51))
    streams.publish(f"{name}.a", [2])
    assert reading.again().read(1) == [2]
    streams.publish(f"{name}.b", range(9))
    streams.call(streams.js.purge_stream(name, seq=60))
    with pytest.raises(JobError, match=r"52 to 59 .* among which .* may have some"):
        reading.again().step()


def test_a_start_that_is_removed_is_refused(streams: Streams, name: str, nats_server: NatsServer):
    streams.make(name)
    streams.publish(f"{name}.a", range(5))
    streams.call(streams.js.purge_stream(name, seq=4))
    start = NatsOffsets.at_sequence(2)
    with pytest.raises(JobError, match="its first message is 4"):
        Reading(NatsStreamSource(name, nats_server.url, start=start))
    source = NatsStreamSource(
        name, nats_server.url, decode=number, start=start, on_lost_position="earliest"
    )
    assert Reading(source).read(2) == [3, 4]


def test_a_stream_that_is_deleted_or_made_again_is_refused(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", range(3))
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number))
    reading.read(3)
    streams.call(streams.js.delete_stream(name))
    with pytest.raises(JobError, match="there is no stream"):
        reading.again().step()
    streams.make(name)
    streams.publish(f"{name}.a", range(10, 15))
    with pytest.raises(JobError, match="was deleted and made again"):
        reading.again().step()
    assert reading.again(on_lost_position="earliest").read(5) == [10, 11, 12, 13, 14]


# ---- servers that go away


def test_a_reader_outlives_a_restart_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with NatsServer(tmp_path) as server:
        with Streams(server.url) as streams:
            streams.make("ORDERS")
            streams.publish("ORDERS.a", range(5))
        reading = Reading(NatsStreamSource("ORDERS", server.url, decode=number, fetch_size=2))
        assert reading.read(2) == [0, 1]
        server.kill()
        with caplog.at_level(logging.WARNING, "penstock.connectors"):
            assert reading.reader.read(5).wait_seconds > 0
            server.start()
            assert reading.read(3) == [2, 3, 4]
        assert "trying again for 60 s" in caplog.text and "answers again" in caplog.text


def test_a_reader_whose_consumer_is_gone_goes_on(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", range(4))
    reading = Reading(NatsStreamSource(name, nats_server.url, decode=number, fetch_size=1))
    found = reading.read(1)
    for _ in range(3):
        for consumer in streams.call(streams.js.consumers_info(name)):
            streams.call(streams.js.delete_consumer(name, consumer.name))
        found += reading.read(1)
    assert found == [0, 1, 2, 3]


def test_a_server_that_stays_away_is_an_error_of_the_environment(tmp_path: Path):
    server = NatsServer(tmp_path)  # which is not started
    source = NatsStreamSource("ORDERS", server.url, patience_seconds=0)
    with pytest.raises(JobError, match=f"cannot read the stream 'ORDERS' at {server.address}") as e:
        source.create_enumerator(1).start()
    assert e.value.recoverability is Recoverability.ENVIRONMENT
    reader = source.create_reader(ReaderContext("source", 0, 1))
    reader.open(Split(">", {"after": 0, "created": "", "end": None}), None)
    with pytest.raises(JobError, match=f"cannot read the stream 'ORDERS' at {server.address}") as e:
        while True:
            reader.read(1)
    assert e.value.recoverability is Recoverability.ENVIRONMENT


def test_a_wait_for_messages_can_be_closed(streams: Streams, name: str, nats_server: NatsServer):
    streams.make(name)
    reading = Reading(NatsStreamSource(name, nats_server.url))
    done = threading.Event()

    def run() -> None:
        reading.reader.read(1)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    reading.reader.close()
    wait_until(done.is_set, "the read has ended")


# ---- wrong arguments, rights and values


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "orders.eu"}, "has no blanks or dots"),
        ({"stream": "A", "subjects": "a"}, "is a list of subjects"),
        ({"stream": "A", "subjects": ["a", "a"]}, "are different"),
        ({"stream": "A", "on_lost_position": "latest"}, 'is "fail" or "earliest"'),
        ({"stream": "A", "fetch_size": 0}, "fetch_size"),
        ({"stream": "A", "schema": Json(), "decode": number}, "either decode or a schema"),
        ({"stream": "A", "connection": ""}, "needs a server"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(GraphError, match=said):
        NatsStreamSource(**options)
    with pytest.raises(GraphError, match="begin at 1"):
        NatsOffsets.at_sequence(0)


def test_a_missing_stream_and_one_that_removes_what_is_read_are_refused(
    streams: Streams, name: str, nats_server: NatsServer
):
    with pytest.raises(JobError, match="there is no stream") as caught:
        NatsStreamSource(name, nats_server.url).create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    streams.make(name, retention="workqueue")
    with pytest.raises(JobError, match="cannot read them again") as caught:
        NatsStreamSource(name, nats_server.url).create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_wrong_password_ends_the_job(tmp_path: Path):
    with NatsServerWithPassword(tmp_path) as server:
        with Streams(f"nats://user:secret@{server.address}") as streams:
            streams.make("A")
            streams.publish("A.a", [1])
        for user in ("user:wrong@", ""):
            source = NatsStreamSource("A", f"nats://{user}{server.address}")
            with pytest.raises(JobError, match="refuses the user or password") as caught:
                source.create_enumerator(1).start()
            assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
            assert "wrong" not in str(caught.value)
        right = NatsStreamSource("A", f"nats://user:secret@{server.address}", decode=number)
        assert Reading(right).read(1) == [1]


def test_a_schema_decodes_messages_and_bad_ones_go_to_the_side_output(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(name)
    streams.publish(f"{name}.a", [1, "none", 3])
    env = StreamExecutionEnvironment.get_execution_environment()
    schema = Json(int, on_error="side_output")
    source = NatsStreamSource(name, nats_server.url, schema=schema, bounded=True)
    numbers = env.from_source(source, None, "numbers")
    bad = numbers.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    with numbers.union(bad).execute_and_collect() as results:
        assert sorted(results, key=str) == [1, 3, b"none"]
    for options in ({"schema": Json()}, {"decode": number}):
        with pytest.raises(JobError, match=r"the message 2 \(.*\) of the stream"):
            Reading(NatsStreamSource(name, nats_server.url, **options)).read(3)
