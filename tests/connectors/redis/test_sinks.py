"""Sinks of Redis write each snapshot once and in order, wherever they are interrupted."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Row, RowKind, StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.redis import (
    RedisConnection,
    RedisHashSink,
    RedisSortedSetSink,
    RedisStreamSink,
)
from penstock.connectors.redis.ledger import ledger_key
from penstock.connectors.staged_sink import Marker, SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import WriterContext
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.redis import EphemeralRedisServer, RedisClusterServer, RedisServer
from tests.sizes import sized

redis = pytest.importorskip("redis")

PLACE = SinkPlace("0a1b", "sink", "Redis")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a key that no other test has."""
    return f"{request.node.name}:{tmp_path.name}:{id(request)}"


class Conformance(SinkConformance):
    """What the tests of all sinks have in common; the place's name is the key."""

    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def connect(self, client: Any, redis_server: RedisServer) -> None:
        self.client, self.url = client, redis_server.url


class TestStreamSink(Conformance):
    def create_sink(self, place: Path) -> Any:
        return RedisStreamSink(place.name, self.url, script_records=2)

    def record(self, number: int) -> Any:
        return {"n": number}

    def read_output(self, place: Path) -> Sequence[Any]:
        return [{"n": int(fields[b"n"])} for _, fields in self.client.xrange(place.name)]


class TestHashSink(Conformance):
    def create_sink(self, place: Path) -> Any:
        return RedisHashSink(str, str, self.url, hash=place.name, script_records=2)

    def read_output(self, place: Path) -> Sequence[Any]:
        return [value.decode() for value in self.client.hgetall(place.name).values()]


class TestHashSinkWithOneHashForEachKey(Conformance):
    def create_sink(self, place: Path) -> Any:
        return RedisHashSink(
            str, lambda text: {"text": text}, self.url, prefix=f"{place.name}:", script_records=2
        )

    def read_output(self, place: Path) -> Sequence[Any]:
        names = self.client.scan_iter(f"{place.name}:*", count=1000)
        return [self.client.hget(name, "text").decode() for name in names]


class TestSortedSetSink(Conformance):
    def create_sink(self, place: Path) -> Any:
        return RedisSortedSetSink(place.name, str, len, self.url, script_records=2)

    def read_output(self, place: Path) -> Sequence[Any]:
        return [member.decode() for member in self.client.zrange(place.name, 0, -1)]


def encoder(sink: StagedSink[Any]) -> Callable[[list[Any]], Any]:
    return sink.create_encoder(WriterContext("sink", "Redis", 0, 1, 1, "0a1b"))


def write(sink: StagedSink[Any], number: int, records: list[Any], place: SinkPlace = PLACE) -> None:
    """Publish records as a JobManager that has just begun does."""
    target = sink.connect(place)
    found = target.fence()
    if found is None or found.number < number:
        target.publish(Marker(number, f"d{number}"), iter([encoder(sink)(records)]))
    target.close()


def numbers(client: Any, key: str) -> list[int]:
    return [int(fields[b"n"]) for _, fields in client.xrange(key)]


# ---- exactly once


class Interrupted(Exception):
    """Stands for the end of a JobManager."""


def fail_at(target: Target, step: int, *, after: bool) -> None:
    """Let the client of a target fail in its n-th command, before or after the server has it."""
    real, left = target._client.eval, [step]  # type: ignore[attr-defined]

    def flaky(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Interrupted
        answer = real(*arguments)
        if left[0] == 0:
            raise Interrupted
        return answer

    target._client.eval = flaky  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_snapshot_that_is_interrupted_at_a_script_is_completed(
    client: Any, key: str, redis_server: RedisServer, step: int, after: bool
):
    sink: Any = RedisStreamSink(key, redis_server.url, script_records=2)
    records = [{"n": i} for i in range(10)]
    target = sink.connect(PLACE)
    assert target.fence() is None
    fail_at(target, step, after=after)
    with pytest.raises(Exception, match="Interrupted"):
        target.publish(Marker(7, "d7"), iter([encoder(sink)(records)]))
    assert len(numbers(client, key)) == 2 * (step - 1 + after)
    write(RedisStreamSink(key, redis_server.url, script_records=3), 7, records)
    assert numbers(client, key) == list(range(10))
    new = sink.connect(PLACE)
    assert new.fence() == Marker(7, "d7")
    with pytest.raises(JobError, match="another JobManager of this job writes there now"):
        target.publish(Marker(8, "d8"), iter([encoder(sink)(records)]))
    new.publish(Marker(9, "d9"), iter([encoder(sink)([{"n": 99}])]))
    assert numbers(client, key) == [*range(10), 99]


@pytest.mark.parametrize("seed", range(sized(20, 500)))
def test_several_jobmanagers_that_fail_at_any_step_write_each_record_once_in_order(
    client: Any, key: str, redis_server: RedisServer, seed: int
):
    rng = random.Random(seed)
    expected: list[int] = []
    targets: list[Target] = []
    for number in range(1, 6):
        records = [{"n": len(expected) + i} for i in range(rng.randrange(8))]
        expected += [record["n"] for record in records]
        done = False
        while not done:
            sink: Any = RedisStreamSink(key, redis_server.url, script_records=rng.randrange(1, 4))
            if not targets or rng.random() < 0.5:
                targets.append(sink.connect(PLACE))
                target = targets[-1]
                found = target.fence()
                if found is not None and found.number >= number:
                    done = True
                    continue
                if rng.random() < 0.7:
                    fail_at(target, rng.randrange(1, 6), after=rng.random() < 0.5)
            else:
                target = rng.choice(targets)  # a zombie, most of the time
            batches = [encoder(sink)(records[:3]), encoder(sink)(records[3:])]
            try:
                target.publish(Marker(number, str(number)), iter(batches))
                done = True
            except JobError:
                pass
    assert numbers(client, key) == expected, f"seed {seed}"
    for target in targets:
        target.close()


def test_an_old_writer_does_not_overwrite_newer_values(
    client: Any, key: str, redis_server: RedisServer
):
    sink: Any = RedisHashSink(
        lambda pair: pair[0], lambda pair: pair[1], redis_server.url, hash=key
    )
    old = sink.connect(PLACE)
    old.fence()
    write(sink, 1, [("a", 1)])
    write(sink, 2, [("a", 2)])
    with pytest.raises(JobError, match="another JobManager"):
        old.publish(Marker(1, "d1"), iter([encoder(sink)([("a", 1)])]))
    write(sink, 1, [("a", 1)])
    assert client.hget(key, "a") == b"2"


def test_a_part_of_another_snapshot_is_refused(client: Any, key: str, redis_server: RedisServer):
    sink: Any = RedisStreamSink(key, redis_server.url, script_records=1)
    records = [{"n": 1}, {"n": 2}, {"n": 3}]
    target = sink.connect(PLACE)
    target.fence()
    fail_at(target, 2, after=True)
    with pytest.raises(Exception, match="Interrupted"):
        target.publish(Marker(4, "d4"), iter([encoder(sink)(records)]))
    for marker in (Marker(4, "other"), Marker(5, "d5")):
        again = sink.connect(PLACE)
        again.fence()
        with pytest.raises(JobError, match=r"2 records of snapshot 4 are at .* already") as caught:
            again.publish(marker, iter([encoder(sink)(records)]))
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    write(sink, 6, [{"n": 9}], SinkPlace("ffff", "sink", "Redis"))  # a fork
    write(sink, 4, records)
    assert numbers(client, key) == [1, 2, 9, 3]


def test_damage_of_staged_output_is_found_before_anything_is_written(
    client: Any, key: str, redis_server: RedisServer
):
    sink: Any = RedisStreamSink(key, redis_server.url, script_records=1)

    def damaged() -> Iterator[Any]:
        yield encoder(sink)([{"n": 1}, {"n": 2}])
        raise JobError("the staged file was changed")

    target = sink.connect(PLACE)
    target.fence()
    with pytest.raises(JobError, match="was changed"):
        target.publish(Marker(1, "d1"), damaged())
    assert numbers(client, key) == []


def test_a_snapshot_that_is_larger_than_the_memory_for_it_is_written(
    client: Any, key: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.connectors.redis.ledger._READ_AHEAD_BYTES", 1)
    sink = RedisStreamSink[Any](key, redis_server.url, script_records=3)
    write(sink, 1, [{"n": i} for i in range(10)])
    assert numbers(client, key) == list(range(10))


def test_a_command_that_fails_in_a_script_is_not_repeated_with_those_before_it(
    client: Any, key: str, redis_server: RedisServer
):
    client.set(f"{key}:b", "text")
    sink: Any = RedisHashSink(
        lambda pair: pair[0], lambda pair: {"v": pair[1]}, redis_server.url, prefix=f"{key}:"
    )
    monkey = sink.connect(PLACE)
    monkey.fence()
    commands = [["INCR", f"{key}:a"], ["HSET", f"{key}:b", "v", "1"], ["INCR", f"{key}:a"]]
    monkey._writing = sink.connect(PLACE)._writing.__class__(
        **{**vars(monkey._writing), "commands": lambda _: [[one] for one in commands]}
    )
    with pytest.raises(JobError, match=r"refuses HSET of the key .*WRONGTYPE") as caught:
        monkey.publish(Marker(1, "d1"), iter([None]))
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    client.delete(f"{key}:b")
    monkey.fence()
    monkey.publish(Marker(1, "d1"), iter([None]))
    assert client.get(f"{key}:a") == b"2" and client.hget(f"{key}:b", "v") == b"1"


# ---- views


def test_a_view_has_the_newest_value_of_each_key_and_forgets_deleted_ones(
    client: Any, key: str, redis_server: RedisServer
):
    view = RedisHashSink[Any](lambda r: r[0], lambda r: r[1], redis_server.url, hash=key)
    write(view, 1, [("a", 1), ("b", 2.5), ("a", b"3"), ("c", "x"), ("c", None)])
    assert client.hgetall(key) == {b"a": b"3", b"b": b"2.5"}
    before = Row.of_kind(RowKind.UPDATE_BEFORE, "b", 2.5)
    after, gone = Row.of_kind(RowKind.UPDATE_AFTER, "b", 9), Row.of_kind(RowKind.DELETE, "a", 3)
    write(view, 2, [before, after, gone])
    assert client.hgetall(key) == {b"b": b"9"}


def test_a_hash_for_each_key_is_replaced(client: Any, key: str, redis_server: RedisServer):
    view = RedisHashSink[Any](
        lambda r: r[0], lambda r: r[1], redis_server.url, prefix=f"{key}:", script_records=1
    )
    write(view, 1, [("a", {"x": 1, "y": 2}), ("b", {"x": 1})])
    write(view, 2, [("a", {"z": 3}), ("b", None)])
    assert client.hgetall(f"{key}:a") == {b"z": b"3"}
    assert not client.exists(f"{key}:b")


def test_a_sorted_set_has_the_newest_score(client: Any, key: str, redis_server: RedisServer):
    view = RedisSortedSetSink[Any](key, lambda r: r[0], lambda r: r[1], redis_server.url)
    write(view, 1, [("a", 1), ("b", float("inf")), ("c", -0.5), ("a", 7)])
    write(view, 2, [("c", None)])
    assert client.zrange(key, 0, -1, withscores=True) == [(b"a", 7.0), (b"b", float("inf"))]


def test_a_job_writes_json_to_a_stream_that_is_trimmed(
    client: Any, key: str, redis_server: RedisServer
):
    env = StreamExecutionEnvironment.get_execution_environment()
    sink = RedisStreamSink[Any](key, redis_server.url, schema=Json(), field="order", max_length=100)
    env.from_collection([{"n": i} for i in range(1_000)]).sink_to(sink)
    env.execute("orders")
    entries = client.xrange(key)
    assert 100 <= len(entries) < 300
    assert entries[-1][1] == {b"order": b'{"n":999}'}


# ---- what is wrong


def test_records_and_arguments_that_cannot_be_written_are_named():
    stream = RedisStreamSink[Any]("s")
    for record, said in (
        (7, "its fields are a int"),
        ({}, "it has 0 fields"),
        ({"a": None}, "None is a NoneType"),
        ({"a": True}, "True is a bool"),
    ):
        with pytest.raises(JobError, match=said) as caught:
            encoder(stream)([{"ok": 1}, record])
        assert caught.value.record == repr(record)
    view = RedisHashSink[Any](lambda r: r[0], lambda r: r[1], prefix="p:")
    with pytest.raises(JobError, match="with prefix, the value is a dict"):
        encoder(view)([("a", 5)])
    scores = RedisSortedSetSink[Any]("z", lambda r: r[0], lambda r: r[1])
    with pytest.raises(JobError, match="the score is a number or None"):
        encoder(scores)([("a", float("nan"))])
    for make, said in (
        (lambda: RedisHashSink(str, str), "has either hash"),
        (lambda: RedisHashSink(str, str, hash="a", prefix="b"), "has either hash"),
        (lambda: RedisStreamSink("s", max_length=0), "max_length"),
        (lambda: RedisStreamSink("s", script_records=0), "script_records"),
        (lambda: RedisStreamSink("s", encode=dict, schema=Json()), "either encode or a schema"),
    ):
        with pytest.raises(GraphError, match=said):
            make()  # type: ignore[no-untyped-call]


def test_a_stream_that_is_another_type_ends_the_job(
    client: Any, key: str, redis_server: RedisServer
):
    client.set(key, "text")
    with pytest.raises(JobError, match=r"refuses XADD of the key .*WRONGTYPE") as caught:
        write(RedisStreamSink(key, redis_server.url), 1, [{"n": 1}])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_server_without_memory_is_an_error_of_the_environment(tmp_path: Path):
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        sink = RedisStreamSink[Any]("s", server.url)
        target = sink.connect(PLACE)
        target.fence()
        client.config_set("maxmemory", "1")
        with pytest.raises(JobError, match=r"OOM|maxmemory") as caught:
            target.publish(Marker(1, "d1"), iter([encoder(sink)([{"n": 1}])]))
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        client.config_set("maxmemory", "0")
        write(sink, 1, [{"n": 1}])
        assert numbers(client, "s") == [1]


def test_a_server_that_may_evict_the_ledger_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        with caplog.at_level(logging.WARNING, "penstock.connectors"):
            RedisStreamSink[Any]("s", server.url).connect(PLACE).fence()
        assert "may evict any key" in caplog.text


def test_a_restart_of_the_server_is_waited_for(tmp_path: Path):
    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        sink = RedisStreamSink[Any]("s", server.url)
        write(sink, 1, [{"n": 1}])
        server.kill()
        away = RedisStreamSink[Any]("s", server.url, patience_seconds=0)
        with pytest.raises(JobError, match="cannot write to 's'") as caught:
            away.connect(PLACE).fence()
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        server.start()
        write(sink, 2, [{"n": 2}])
        assert numbers(client, "s") == [1, 2]


def test_a_cluster_needs_the_ledger_in_the_slot_of_the_keys(tmp_path: Path):
    with RedisClusterServer(tmp_path) as server:
        connection = RedisConnection(server.url, cluster=True)
        write(RedisStreamSink("orders", connection, script_records=1), 1, [{"n": 1}, {"n": 2}])
        view = RedisHashSink[Any](
            lambda r: r[0], lambda r: {"v": r[1]}, connection, prefix="{view}:"
        )
        view.validate()
        write(view, 1, [("a", 1), ("b", 2)])
        with connection.client() as client:
            assert numbers(client, "orders") == [1, 2]
            assert client.hget("{view}:b", "v") == b"2"
        with pytest.raises(GraphError, match="must be in one hash slot"):
            RedisHashSink(str, str, connection, prefix="view:").validate()
        with pytest.raises(JobError, match="different hash slots"):
            RedisStreamSink[Any]("a}b", connection).connect(PLACE).fence()
        # Without hash tags, the keys of a script have different slots.
        bad = RedisHashSink[Any](lambda r: r[0], lambda r: {"v": r[1]}, connection, prefix="view:")
        with pytest.raises(JobError, match=r"into braces|slot"):
            write(bad, 1, [("a", 1), ("b", 2)])


def test_keys_and_their_ledgers_have_one_slot():
    from redis.crc import key_slot

    for key in ("orders", "{shop}:orders", "a{b}c{d}", "a{b"):
        assert key_slot(key.encode()) == key_slot(ledger_key(key, PLACE)), key


def test_a_server_that_restarts_without_its_data_has_no_marker(tmp_path: Path):
    with EphemeralRedisServer(tmp_path) as server:
        sink = RedisStreamSink[Any]("s", server.url)
        write(sink, 3, [{"n": 1}])
        server.kill()
        server.start()
        assert sink.connect(PLACE).fence() is None
