"""The fakes of streams of Redis, NATS and RabbitMQ: sources, sinks and a lookup, no server."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import penstock
from penstock import StreamExecutionEnvironment, WatermarkStrategy
from penstock.connectors.bad_messages import BAD_MESSAGES
from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsMessage, NatsStreamSink, NatsStreamSource
from penstock.connectors.postgres import PostgresLookup, PostgresSink
from penstock.connectors.rabbitmq import RabbitMessage, RabbitStreamSink, RabbitStreamSource
from penstock.connectors.redis import RedisEntry, RedisHashSink, RedisStreamSource
from penstock.dataflow.errors import JobError
from penstock.testing.connectors import FakeSystem, SourceConformance
from penstock.testing.connectors.stream_fakes import (
    FakePostgresLookup,
    FakeRedisLookup,
    FakeStagedSink,
    FakeStream,
)

ENTRIES = [RedisEntry("orders", f"{1000 + i}-0", {"n": b"%d" % i}) for i in range(9)]


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> StreamExecutionEnvironment:
    monkeypatch.setenv("PENSTOCK_IN_PROCESS", "true")
    return StreamExecutionEnvironment.get_execution_environment()


class TestFakeStream(SourceConformance):
    def create_source(self) -> Any:
        source = RedisStreamSource("orders", decode=lambda entry: int(entry.fields["n"]))
        return FakeStream(source, ENTRIES)

    def expected(self) -> list[int]:
        return list(range(9))


def test_a_program_reads_fake_messages_of_nats_with_a_schema(env: Any):
    messages = [
        NatsMessage("orders.a", i, 1000 + i, data, {})
        for i, data in enumerate([b"1", b"none", b"3"])
    ]
    source = NatsStreamSource("ORDERS", schema=Json(int, on_error="side_output"))
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    numbers = env.from_source(FakeStream(source, messages), strategy, "orders")
    bad = numbers.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    assert sorted(numbers.union(bad).execute_and_collect(), key=str) == [1, 3, b"none"]


def test_a_program_reads_fake_messages_of_rabbitmq(env: Any):
    messages = [RabbitMessage(b"%d" % n, n, 1000 + n) for n in range(3)]
    decoded = FakeStream(RabbitStreamSource("localhost", "orders", Json(int)), messages)
    assert list(env.from_source(decoded).execute_and_collect()) == [0, 1, 2]
    whole = env.from_source(FakeStream(RabbitStreamSource("localhost", "orders"), messages))
    found = whole.map(lambda one: one.offset if isinstance(one, RabbitMessage) else None)
    assert list(found.execute_and_collect()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sink", "sent"),
    [
        (RabbitStreamSink("localhost", "s", Json(), amqp=False), [b'["a",1]', b'["b",null]']),
        (RedisHashSink(lambda r: r[0], lambda r: r[1], hash="h"), [[b"a", b"1"], [b"b", None]]),
        (
            NatsStreamSink("S", "s.a", schema=Json()),
            [["s.a", b'["a",1]', None], ["s.a", b'["b",null]', None]],
        ),
    ],
)
def test_a_fake_shows_what_a_sink_sends(env: Any, sink: Any, sent: list[Any]):
    name = type(sink).__name__
    with FakeSystem(name) as system:
        env.from_collection([("a", 1), ("b", None)]).sink_to(FakeStagedSink(sink, name))
        env.execute("sink")
    assert system.records == sent


def test_a_fake_shows_the_lines_that_a_sink_copies_to_postgres(env: Any):
    sink = PostgresSink("", "totals", columns=["name", "n"])
    with FakeSystem("postgres") as system:
        env.from_collection([("a", 1), ("b", None)]).sink_to(FakeStagedSink(sink, "postgres"))
        env.execute("sink")
    # Each batch is the names of the columns, and lines.
    assert all(columns == ["name", "n"] for columns in system.records[::2])
    assert b"".join(system.records[1::2]) == b"a\t1\nb\t\\N\n"


@pytest.mark.parametrize("many", [False, True])
def test_a_fake_finds_rows_as_a_lookup_in_postgres_does(many: bool):
    lookup = PostgresLookup(
        "", "prices", key=["shop", "day"], of=lambda one: one, as_="tuple", many=many
    )
    rows = [{"shop": "a", "day": day, "price": 10 * day} for day in (1, 2)]
    keys = [("a", 2), ("a", 3), ("a", None), ("a", 1)]
    one, two, none = ("a", 1, 10), ("a", 2, 20), [] if many else None
    expected = [[two], none, none, [one]] if many else [two, none, none, one]
    assert FakePostgresLookup(lookup, rows).invoke_batch(keys) == expected
    if not many:
        with pytest.raises(JobError, match="several rows"):
            FakePostgresLookup(lookup, rows * 2).invoke_batch(keys)


@pytest.mark.parametrize("fake", [FakeStream, FakeStagedSink, FakeRedisLookup, FakePostgresLookup])
def test_the_example_of_a_fake_gives_what_it_says(env: Any, fake: type):
    names = {**{name: getattr(penstock, name) for name in penstock.__all__}, "env": env}
    names |= {"FakeSystem": FakeSystem, "__name__": "__main__"}
    test = doctest.DocTestParser().get_doctest(fake.__doc__ or "", names, fake.__name__, None, None)
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert test.examples and not report, "".join(report)
