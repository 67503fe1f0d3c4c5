"""The sink publishes each snapshot once and in order, wherever it is interrupted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsStreamSink
from penstock.connectors.nats.publisher import Publisher
from penstock.connectors.staged_sink import Marker, SinkPlace, Target
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.nats import NatsServer
from tests.sizes import sized

pytest.importorskip("nats")
from tests.connectors.nats.streams import Streams

PLACE = SinkPlace("0a1b", "sink", "NATS")


@pytest.fixture
def streams(nats_server: NatsServer) -> Iterator[Streams]:
    with Streams(nats_server.url) as streams:
        yield streams


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path, streams: Streams) -> str:
    """Return the name of a stream that no other test has."""
    text = re.sub(r"\W", "_", f"{request.node.name[:40]}_{tmp_path.name[-20:]}_{id(request)}")
    return streams.make(text)


class TestNatsSink(SinkConformance):
    whole_snapshots = True
    shared = False

    @pytest.fixture(autouse=True)
    def connect(self, streams: Streams, nats_server: NatsServer) -> None:
        self.streams, self.url = streams, nats_server.url

    def create_sink(self, place: Path) -> Any:
        name = self.streams.make(place.name)
        return NatsStreamSink(name, f"{name}.a", self.url)

    def read_output(self, place: Path) -> Sequence[Any]:
        return [message.data.decode() for message in self.streams.messages(place.name)]


class TestNatsSinkThatIsAloneInASubject(TestNatsSink):
    shared = True
    others = 0

    def create_sink(self, place: Path) -> Any:
        name = self.streams.make(place.name)
        self.others += 1
        return NatsStreamSink(name, f"{name}.{self.others}", self.url, alone_in="subject")


def encoder(sink: NatsStreamSink[Any]) -> Callable[[list[Any]], Any]:
    return sink.create_encoder(WriterContext("sink", "NATS", 0, 1, 1, "0a1b"))


def write(sink: Any, number: int, records: list[Any], place: SinkPlace = PLACE) -> None:
    """Publish records as a JobManager that has just begun does."""
    target = sink.connect(place)
    found = target.fence()
    if found is None or found.number < number:
        target.publish(Marker(number, f"d{number}"), iter([encoder(sink)(records)]))
    target.close()


def numbers(streams: Streams, name: str) -> list[int]:
    return [int(message.data) for message in streams.messages(name)]


class Interrupted(Exception):
    """Stands for the end of a JobManager."""


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets a target fail at a message, before or after it is stored."""
    failing: dict[int, list[Any]] = {}
    real = Publisher.publish

    async def publish(self: Any, *message: Any) -> None:
        left = failing.get(id(self._client), [-1, False])
        left[0] -= 1
        if left[0] == 0 and not left[1]:
            raise Interrupted
        await real(self, *message)
        if left[0] == 0:
            while self.waiting:
                await self.confirmed()
            raise Interrupted

    monkeypatch.setattr(Publisher, "publish", publish)

    def arm(target: Any, step: int, *, stored: bool) -> None:
        failing[id(target._client)] = [step, stored]

    return arm


@pytest.mark.parametrize("alone_in", ["stream", "subject"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("step", [1, 2, 5, 10])
def test_a_snapshot_that_is_interrupted_at_a_message_is_completed(
    streams: Streams,
    name: str,
    nats_server: NatsServer,
    step: int,
    stored: bool,
    alone_in: Any,
    fail_at: Any,
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url, alone_in=alone_in)
    records = list(range(10))
    target = sink.connect(PLACE)
    assert target.fence() is None
    fail_at(target, step, stored=stored)
    with pytest.raises(JobError, match="Interrupted"):
        target.publish(Marker(7, "d7"), iter([encoder(sink)(records)]))
    target.close()
    # As if the server had forgotten the ids of the messages.
    streams.call(streams.js.update_stream(name=name, subjects=[f"{name}.>"], duplicate_window=0.1))
    write(sink, 7, records)
    assert numbers(streams, name) == records
    new = sink.connect(PLACE)
    assert new.fence() == Marker(7, "d7")
    new.publish(Marker(9, "d9"), iter([encoder(sink)([99])]))
    new.close()
    assert numbers(streams, name) == [*records, 99]


def test_an_interruption_before_the_marker_is_noticed(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    target = sink.connect(PLACE)
    target.fence()

    async def fail(marker: Marker) -> None:
        raise Interrupted

    target._write_marker = fail
    with pytest.raises(JobError, match="Interrupted"):
        target.publish(Marker(1, "d1"), iter([encoder(sink)([1, 2, 3])]))
    target.close()
    write(sink, 1, [1, 2, 3])
    write(sink, 2, [4])
    assert numbers(streams, name) == [1, 2, 3, 4]


@pytest.mark.parametrize("messages", [0, 5])
def test_messages_that_an_old_jobmanager_sends_late_are_not_stored(
    streams: Streams, name: str, nats_server: NatsServer, messages: int
):
    streams.call(streams.js.update_stream(name=name, subjects=[f"{name}.>"], duplicate_window=0.1))
    streams.publish(f"{name}.x", range(-messages, 0))
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    records = list(range(20))
    olds = [sink.connect(PLACE) for _ in range(2)]
    for old in olds:
        old.fence()
    write(sink, 1, records)
    expected = [*range(-messages, 0), *records]
    for number, old in enumerate(olds, 1):
        with pytest.raises(
            JobError, match=r"something else has written to|another JobManager"
        ) as e:
            old.publish(Marker(number, f"d{number}"), iter([encoder(sink)(records)]))
        assert e.value.recoverability is Recoverability.ENVIRONMENT
        assert numbers(streams, name) == expected


@pytest.mark.parametrize("seed", range(sized(10, 300)))
def test_several_jobmanagers_that_fail_at_any_step_write_each_record_once_in_order(
    streams: Streams, name: str, nats_server: NatsServer, seed: int, fail_at: Any
):
    rng = random.Random(seed)
    if rng.random() < 0.5:
        config = {"name": name, "subjects": [f"{name}.>"], "duplicate_window": 0.1}
        streams.call(streams.js.update_stream(**config))
    expected: list[int] = []
    targets: list[Target] = []
    for number in range(1, 5):
        records = [len(expected) + i for i in range(rng.randrange(8))]
        expected += records
        done = False
        while not done:
            sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
            try:
                if not targets or rng.random() < 0.5:
                    targets.append(sink.connect(PLACE))
                    target = targets[-1]
                    found = target.fence()
                    if found is not None and found.number >= number:
                        done = True
                        continue
                    if rng.random() < 0.7:
                        fail_at(target, rng.randrange(1, 6), stored=rng.random() < 0.5)
                else:
                    target = rng.choice(targets)  # a zombie, most of the time
                batches = [encoder(sink)(records[:3]), encoder(sink)(records[3:])]
                target.publish(Marker(number, str(number)), iter(batches))
                done = True
            except JobError:
                # As the committer does: a connection is not used again after an error.
                targets.remove(target)
                target.close()
    for target in targets:
        target.close()
    assert numbers(streams, name) == expected, f"seed {seed}"


def test_messages_are_not_stored_behind_those_of_another_program(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    target = sink.connect(PLACE)
    target.fence()
    streams.publish(f"{name}.x", [0, 0, 0])  # so that the fourth message has the right sequence
    with pytest.raises(JobError, match="something else has written to the stream"):
        target.publish(Marker(1, "d1"), iter([encoder(sink)([1, 2, 3, 4, 5, 6])]))
    target.close()
    write(sink, 1, [1, 2, 3, 4, 5, 6])
    assert numbers(streams, name) == [0, 0, 0, 1, 2, 3, 4, 5, 6]


def test_a_part_of_another_snapshot_is_refused(
    streams: Streams, name: str, nats_server: NatsServer, fail_at: Any
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    target = sink.connect(PLACE)
    target.fence()
    fail_at(target, 2, stored=True)
    with pytest.raises(JobError, match="Interrupted"):
        target.publish(Marker(4, "d4"), iter([encoder(sink)([1, 2, 3])]))
    target.close()
    for marker in (Marker(4, "other"), Marker(5, "d5")):
        again = sink.connect(PLACE)
        again.fence()
        with pytest.raises(JobError, match="2 messages of snapshot 4 are in the stream") as caught:
            again.publish(marker, iter([encoder(sink)([1, 2, 3])]))
        again.close()
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    write(sink, 6, [9], SinkPlace("ffff", "sink", "NATS"))  # a fork
    write(sink, 4, [1, 2, 3])
    assert numbers(streams, name) == [1, 2, 9, 3]


def test_output_of_earlier_jobs_may_be_in_the_stream(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    other = SinkPlace("ffff", "sink", "NATS")
    write(sink, 3, [1, 2])
    write(sink, 3, [3], other)
    write(sink, 4, [4])
    write(sink, 4, [5], other)
    write(sink, 4, [5], other)
    assert numbers(streams, name) == [1, 2, 3, 4, 5]


def test_a_marker_survives_the_removal_of_its_messages(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    write(sink, 3, [1, 2])
    streams.call(streams.js.purge_stream(name))
    write(sink, 3, [1, 2])
    write(sink, 4, [3])
    assert numbers(streams, name) == [3]


def test_another_program_that_writes_to_the_stream_is_noticed(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink: Any = NatsStreamSink(name, f"{name}.a", nats_server.url)
    target = sink.connect(PLACE)
    target.fence()
    streams.publish(f"{name}.x", [0])
    with pytest.raises(JobError, match="or another program, which the sink of this job must be"):
        target.publish(Marker(1, "d1"), iter([encoder(sink)([1])]))
    target.close()
    write(sink, 1, [1])
    subject: Any = NatsStreamSink(name, f"{name}.b", nats_server.url, alone_in="subject")
    target = subject.connect(PLACE)
    target.fence()
    streams.publish(f"{name}.x", [2])
    target.publish(Marker(2, "d2"), iter([encoder(subject)([3])]))
    target.close()
    assert numbers(streams, name) == [0, 1, 2, 3]


def test_a_job_writes_json_with_headers_to_several_subjects(
    streams: Streams, name: str, nats_server: NatsServer
):
    env = StreamExecutionEnvironment.get_execution_environment()
    sink = NatsStreamSink[Any](
        name,
        lambda record, name=name: f"{name}.{record['n'] % 2}",
        nats_server.url,
        schema=Json(),
        headers=lambda record: {"Number": str(record["n"])},
    )
    env.from_collection([{"n": i} for i in range(3_000)]).sink_to(sink)
    env.execute("numbers")
    found = streams.messages(name)
    assert [message.data for message in found] == [b'{"n":%d}' % i for i in range(3_000)]
    assert found[7].subject == f"{name}.1" and found[7].headers["Number"] == "7"


def test_a_restart_of_the_server_is_waited_for(tmp_path: Path):
    with NatsServer(tmp_path) as server:
        with Streams(server.url) as streams:
            streams.make("A")
        sink = NatsStreamSink[Any]("A", "A.a", server.url)
        write(sink, 1, [1])
        target = sink.connect(PLACE)
        target.fence()
        server.kill()
        with pytest.raises(JobError, match="cannot publish snapshot 2") as caught:
            target.publish(Marker(2, "d2"), iter([encoder(sink)([2])]))
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        target.close()
        away = NatsStreamSink[Any]("A", "A.a", server.url, patience_seconds=0)
        with pytest.raises(JobError, match="cannot write to the stream 'A'") as caught:
            away.connect(PLACE).fence()
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        server.start()
        write(sink, 2, [2])
        with Streams(server.url) as streams:
            assert numbers(streams, "A") == [1, 2]


# ---- what is wrong


def test_a_missing_stream_subject_or_answer_is_said(
    streams: Streams, name: str, nats_server: NatsServer
):
    streams.make(f"{name}_quiet", no_ack=True)
    for stream, subject, said in (
        ("NO_SUCH_STREAM", "a", "there is no stream"),
        (name, "elsewhere.a", "does not store the subject"),
        (f"{name}_quiet", f"{name}_quiet.a", "confirms no messages"),
    ):
        with pytest.raises(JobError, match=said) as caught:
            NatsStreamSink[Any](stream, subject, nats_server.url).connect(PLACE).fence()
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    anywhere = NatsStreamSink[Any](name, lambda _: "elsewhere.a", nats_server.url)
    with pytest.raises(JobError, match="no stream has the subject"):
        write(anywhere, 1, ["x"])


def test_a_message_that_is_too_large_is_refused(
    streams: Streams, name: str, nats_server: NatsServer
):
    sink = NatsStreamSink[Any](name, f"{name}.a", nats_server.url)
    with pytest.raises(JobError, match="has 2000000 bytes, and the server takes 1048576") as caught:
        write(sink, 1, ["x" * 2_000_000])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "a.b", "subject": "a"}, "has no blanks or dots"),
        ({"stream": "A", "subject": "a.*"}, "cannot be published to the subject"),
        ({"stream": "A", "subject": "a..b"}, "cannot be published to the subject"),
        ({"stream": "A", "subject": "a", "alone_in": "x"}, 'is "stream" or "subject"'),
        ({"stream": "A", "subject": str, "alone_in": "subject"}, "needs one subject"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(GraphError, match=said):
        NatsStreamSink(**options)


def test_records_that_cannot_be_written_are_named():
    for options, said in (
        ({"subject": lambda _: "a b"}, "cannot publish to the subject 'a b'"),
        ({"subject": lambda _: 7}, "cannot publish to the subject 7"),
        ({"subject": "a", "headers": lambda _: {"Nats-Msg-Id": "x"}}, "cannot write the header"),
        ({"subject": "a", "headers": lambda _: {"A": 1}}, "cannot write the header"),
        ({"subject": "a", "headers": lambda _: {"A": "1\r\nB: 2"}}, "cannot write the header"),
    ):
        sink: Any = NatsStreamSink("A", **options)  # type: ignore[arg-type]
        with pytest.raises(JobError, match=said):
            encoder(sink)(["x"])
