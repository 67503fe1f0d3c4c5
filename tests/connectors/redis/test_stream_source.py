"""Streams are read once from each position; what is trimmed, wrong or away is said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment, WatermarkStrategy
from penstock.connectors.bad_messages import BAD_MESSAGES
from penstock.connectors.formats import Json
from penstock.connectors.redis import RedisConnection, RedisEntry, RedisOffsets, RedisStreamSource
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.source import ReaderContext, Split
from penstock.testing.connectors import SourceConformance
from penstock.testing.servers.redis import EphemeralRedisServer, RedisClusterServer, RedisServer
from tests.processes.harness import wait_until

redis = pytest.importorskip("redis")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


@pytest.fixture
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a key that no other test has."""
    return f"{request.node.name}:{tmp_path.name}:{id(request)}"


def number(entry: RedisEntry) -> int:
    return int(entry.fields["n"])


def add(client: Any, stream: str, numbers: Any) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for i in numbers:
        pipeline.xadd(stream, {"n": i})
    return [id.decode() for id in pipeline.execute()]


class Reading:
    """Reads the first split of a source as a task does."""

    def __init__(self, source: RedisStreamSource[Any], position: Any = None) -> None:
        self.source = source
        self.enumerator = source.create_enumerator(1)
        self.enumerator.start()
        self.reader = source.create_reader(ReaderContext("source", 0, 1))
        split = self.enumerator.next_split(0)
        assert split is not None
        self.split: Split = split
        self.reader.open(split, position)
        self.position: Any = position

    def read(self, count: int) -> list[Any]:
        """Read exactly so many records."""
        records: list[Any] = []
        while len(records) < count:
            read = self.reader.read(count - len(records))
            records += read.records
            self.position = read.position
        return records

    def again(self, **options: Any) -> Any:
        """Return another reader at the position of this one."""
        context = ReaderContext("source", 0, 1, on_lost_position=options.pop("setting", None))
        source = RedisStreamSource(
            self.source.streams, self.source.connection, decode=number, **options
        )
        reader = source.create_reader(context)
        reader.open(self.split, self.position)
        return reader


class TestBoundedStreams(SourceConformance):
    @pytest.fixture(autouse=True)
    def fill(self, client: Any, stream: str, redis_server: RedisServer) -> None:
        self.streams = [f"{stream}:{i}" for i in range(3)]
        self.url = redis_server.url
        for i, key in enumerate(self.streams):
            add(client, key, range(i, 20, 3))

    def create_source(self) -> Any:
        return RedisStreamSource(self.streams, self.url, decode=number, bounded=True)

    def expected(self) -> list[int]:
        return list(range(20))


class TestAStream(SourceConformance):
    limit = 20

    @pytest.fixture(autouse=True)
    def fill(self, client: Any, stream: str, redis_server: RedisServer) -> None:
        self.stream, self.url = stream, redis_server.url
        add(client, stream, range(20))

    def create_source(self) -> Any:
        return RedisStreamSource(self.stream, self.url, decode=number, fetch_size=4)

    def expected(self) -> list[int]:
        return list(range(20))


def test_a_bounded_job_reads_fields_as_text_and_times_from_ids(
    client: Any, stream: str, redis_server: RedisServer
):
    for i in range(3):
        client.xadd(stream, {"product": "tea", "quantity": i}, id=f"{1000 + i}-7")
    env = StreamExecutionEnvironment.get_execution_environment()
    source = RedisStreamSource(stream, redis_server.url, bounded=True)
    records = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "orders")

    from penstock import ProcessFunction

    class Timed(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield ctx.timestamp(), value

    with records.process(Timed()).execute_and_collect() as results:
        assert list(results) == [
            (1000 + i, {"product": "tea", "quantity": str(i)}) for i in range(3)
        ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (RedisOffsets.earliest(), [0, 1, 2, 3]),
        (RedisOffsets.latest(), [3]),
        (RedisOffsets.at_timestamp(200), [1, 2, 3]),
        (RedisOffsets.at_timestamp(201), [2, 3]),
        (RedisOffsets.ids("200-0"), [2, 3]),
        (RedisOffsets.ids({"*": "250-1"}), [2, 3]),
    ],
)
def test_a_job_begins_where_it_is_told(
    client: Any, stream: str, redis_server: RedisServer, start: RedisOffsets, expected: list[int]
):
    for i in range(3):
        client.xadd(stream, {"n": i}, id=f"{100 * (i + 1)}-0")
    reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number, start=start))
    client.xadd(stream, {"n": 3}, id="400-0")
    assert reading.read(len(expected)) == expected


def test_a_reader_waits_for_a_stream_that_does_not_exist(
    client: Any, stream: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number))
    assert "waiting for its first entry" in caplog.text
    assert reading.reader.read(10).records == []
    add(client, stream, [1, 2])
    assert reading.read(2) == [1, 2]


def test_a_bounded_source_refuses_a_stream_that_does_not_exist(
    stream: str, redis_server: RedisServer
):
    source = RedisStreamSource(stream, redis_server.url, bounded=True)
    with pytest.raises(JobError, match="there is no stream") as caught:
        source.create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


# ---- lost entries


def test_trimming_behind_the_reader_is_fine_and_beyond_it_is_refused(
    client: Any, stream: str, redis_server: RedisServer
):
    add(client, stream, range(10))
    reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number, fetch_size=2))
    assert reading.read(4) == [0, 1, 2, 3]
    client.xtrim(stream, maxlen=6, approximate=False)
    assert reading.again().read(10).records == [4, 5, 6, 7, 8, 9]
    client.xtrim(stream, maxlen=3, approximate=False)
    with pytest.raises(JobError, match="3 entries behind it were trimmed") as caught:
        reading.again().read(10)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert stream in str(caught.value) and 'on_lost_position="earliest"' in str(caught.value)
    with pytest.raises(JobError, match="3 entries behind it were trimmed"):
        reading.read(6)  # the same reader, without a restart
    for choice in ({"on_lost_position": "earliest"}, {"setting": LostPosition.EARLIEST}):
        going_on = reading.again(**choice)
        assert going_on.read(1).records == []
        assert going_on.read(10).records == [7, 8, 9]


def test_a_stream_that_was_trimmed_to_nothing_and_read_to_its_end_is_fine(
    client: Any, stream: str, redis_server: RedisServer
):
    add(client, stream, range(5))
    reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number))
    reading.read(5)
    client.xtrim(stream, maxlen=0, approximate=False)
    reader = reading.again()
    assert reader.read(5).records == []
    add(client, stream, [5])
    assert reader.read(5).records == [5]
    add(client, stream, [6])
    client.xtrim(stream, maxlen=0, approximate=False)
    with pytest.raises(JobError, match="1 entries behind it were trimmed"):
        reader.read(5)


def test_entries_that_are_deleted_one_by_one_are_not_lost(
    client: Any, stream: str, redis_server: RedisServer
):
    ids = add(client, stream, range(6))
    reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number))
    reading.read(3)
    client.xdel(stream, *ids[1:4])
    assert reading.again().read(5).records == [4, 5]
    add(client, stream, [6])
    assert reading.read(3) == [3, 4, 5]  # were fetched before
    client.xdel(stream, *ids)
    assert reading.again().read(5).records == [6]


def test_a_deleted_stream_is_noticed_and_what_comes_then_can_be_read(
    client: Any, stream: str, redis_server: RedisServer
):
    add(client, stream, range(3))
    reading = Reading(RedisStreamSource(stream, redis_server.url, decode=number))
    reading.read(3)
    client.delete(stream)
    with pytest.raises(JobError, match="does not exist any more"):
        reading.again().read(1)
    add(client, stream, [7])
    with pytest.raises(JobError, match="has only had 1 now"):
        reading.again().read(1)
    reader = reading.again(on_lost_position="earliest")
    assert reader.read(1).records + reader.read(1).records == [7]


def test_a_start_that_is_trimmed_is_refused(client: Any, stream: str, redis_server: RedisServer):
    ids = add(client, stream, range(5))
    client.xtrim(stream, maxlen=2, approximate=False)
    start = RedisOffsets.ids(ids[0])
    with pytest.raises(JobError, match="3 are gone"):
        Reading(RedisStreamSource(stream, redis_server.url, start=start))
    source = RedisStreamSource(
        stream, redis_server.url, decode=number, start=start, on_lost_position="earliest"
    )
    assert Reading(source).read(2) == [3, 4]


def test_a_server_that_restarts_without_its_data_is_refused(tmp_path: Path):
    with EphemeralRedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        add(client, "orders", range(5))
        reading = Reading(RedisStreamSource("orders", server.url, decode=number))
        reading.read(5)
        server.kill()
        server.start()
        with pytest.raises(JobError, match="has lost its data"):
            reading.read(1)
        add(client, "orders", [5])
        with pytest.raises(JobError, match="5 entries had been added to it, and it has only had 1"):
            reading.again().read(1)


# ---- servers that go away


def test_entries_that_are_lost_before_the_first_read_are_noticed(tmp_path: Path):
    with EphemeralRedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        add(client, "orders", range(5))
        for bounded in (True, False):
            add(client, "orders", range(5))
            reading = Reading(RedisStreamSource("orders", server.url, bounded=bounded))
            server.kill()
            server.start()
            with pytest.raises(JobError, match="does not exist any more"):
                reading.read(1)


def test_a_reader_outlives_a_restart_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        add(client, "orders", range(5))
        source = RedisStreamSource("orders", server.url, decode=number, fetch_size=2)
        reading = Reading(source)
        assert reading.read(2) == [0, 1]
        server.kill()
        with caplog.at_level(logging.WARNING, "penstock.connectors"):
            assert reading.reader.read(5).wait_seconds > 0
            server.start()
            assert reading.read(3) == [2, 3, 4]
        assert "trying again for 60 s" in caplog.text and "answers again" in caplog.text


def test_a_reader_whose_connection_is_cut_goes_on(
    client: Any, stream: str, redis_server: RedisServer
):
    add(client, stream, range(4))
    name = f"reader-{id(self_lock := threading.Lock())}"
    del self_lock
    connection = RedisConnection(redis_server.url, options={"client_name": name})
    reading = Reading(RedisStreamSource(stream, connection, decode=number, fetch_size=1))
    found = reading.read(1)
    for i in range(1, 4):
        mine = [one for one in client.client_list() if one["name"] == name]
        assert mine, f"no connection before read {i}"
        for one in mine:
            client.client_kill_filter(_id=one["id"])
        found += reading.read(1)
    assert found == [0, 1, 2, 3]


def test_a_server_that_stays_away_is_an_error_of_the_environment(tmp_path: Path):
    server = RedisServer(tmp_path)  # which is not started
    source = RedisStreamSource("orders", server.url, patience_seconds=0)
    reader = source.create_reader(ReaderContext("source", 0, 1))
    reader.open(Split("orders", {"start": ["0-0", 0, False], "end": None}), None)
    assert reader.read(1).records == []
    with pytest.raises(JobError, match=f"cannot read the stream 'orders' at {server.address}") as e:
        while True:
            reader.read(1)
    assert e.value.recoverability is Recoverability.ENVIRONMENT


def test_a_wait_for_entries_can_be_closed(stream: str, redis_server: RedisServer):
    reading = Reading(RedisStreamSource(stream, redis_server.url))
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
        ({"streams": []}, "needs different streams"),
        ({"streams": ["a", "a"]}, "needs different streams"),
        ({"streams": "a", "connection": "http://x:y@host"}, "begins with redis://"),
        ({"streams": "a", "on_lost_position": "latest"}, 'is "fail" or "earliest"'),
        ({"streams": "a", "fetch_size": 0}, "fetch_size"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(GraphError, match=said) as caught:
        RedisStreamSource(**options)
    assert "x:y" not in str(caught.value)


def test_ids_for_some_streams_only_are_refused():
    source = RedisStreamSource(["a", "b"], start=RedisOffsets.ids({"a": "1-0"}))
    with pytest.raises(GraphError, match="no id for the stream 'b'"):
        source.validate()


def test_a_key_of_another_type_is_refused(client: Any, stream: str, redis_server: RedisServer):
    client.set(stream, "text")
    with pytest.raises(JobError, match="a value of another type") as caught:
        RedisStreamSource(stream, redis_server.url).create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_wrong_password_or_a_missing_right_ends_the_job(
    client: Any, stream: str, redis_server: RedisServer
):
    url = f"redis://nobody:secret@{redis_server.address}/0"
    with pytest.raises(JobError, match="refuses the user or password") as caught:
        RedisStreamSource(stream, url).create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert "secret" not in str(caught.value)
    client.acl_setuser("reader", enabled=True, passwords=["+pw"], commands=["+ping", "+client"])
    url = f"redis://reader:pw@{redis_server.address}/0"
    with pytest.raises(JobError, match="ACL SETUSER") as caught:
        RedisStreamSource(stream, url).create_enumerator(1).start()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_an_entry_that_cannot_be_decoded_is_named(
    client: Any, stream: str, redis_server: RedisServer
):
    id = client.xadd(stream, {"n": b"\xff"}).decode()
    with pytest.raises(JobError, match=f"the entry {id} of the stream .* cannot be decoded"):
        Reading(RedisStreamSource(stream, redis_server.url)).read(1)


def test_a_schema_decodes_one_field_and_bad_entries_go_to_the_side_output(
    client: Any, stream: str, redis_server: RedisServer
):
    for value in (b"1", b"none", b"3"):
        client.xadd(stream, {"data": value})
    env = StreamExecutionEnvironment.get_execution_environment()
    schema = Json(int, on_error="side_output")
    source = RedisStreamSource(stream, redis_server.url, schema=schema, field="data", bounded=True)
    numbers = env.from_source(source, None, "numbers")
    bad = numbers.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    with numbers.union(bad).execute_and_collect() as results:
        assert sorted(results, key=str) == [1, 3, b"none"]
    with pytest.raises(JobError, match="has no field 'value', but"):
        Reading(RedisStreamSource(stream, redis_server.url, schema=Json())).read(1)
    with pytest.raises(JobError, match=r"the entry .* is not valid Json"):
        Reading(RedisStreamSource(stream, redis_server.url, schema=Json(), field="data")).read(3)


def test_streams_may_be_added_and_left_out_when_a_job_is_resumed(
    client: Any, stream: str, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    names = [f"{stream}:{i}" for i in range(3)]
    for i, name in enumerate(names):
        add(client, name, [i])
    old = RedisStreamSource(names[:2], redis_server.url, decode=number)
    enumerator = old.create_enumerator(1)
    enumerator.start()
    begun = enumerator.next_split(0)
    assert begun is not None and begun.id == names[0]
    new = RedisStreamSource(names[1:], redis_server.url, decode=number)
    restored = new.create_enumerator(1)
    restored.restore(enumerator.snapshot())
    splits = [split for _ in range(5) if (split := restored.next_split(0)) is not None]
    assert [split.id for split in splits] == names[1:]
    reader = new.create_reader(ReaderContext("source", 0, 1))
    reader.open(begun, None)
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        assert reader.read(1).finished
    assert "no longer read" in caplog.text


def test_streams_of_a_cluster_are_read(tmp_path: Path):
    with RedisClusterServer(tmp_path) as server:
        connection = RedisConnection(server.url, cluster=True)
        with connection.client() as client:
            add_each = [client.xadd(f"orders:{i}", {"n": i}) for i in range(3)]
        assert len(add_each) == 3
        source = RedisStreamSource(
            [f"orders:{i}" for i in range(3)], connection, decode=number, bounded=True
        )
        env = StreamExecutionEnvironment.get_execution_environment()
        with env.from_source(source, None, "orders").execute_and_collect() as results:
            assert sorted(results) == [0, 1, 2]
