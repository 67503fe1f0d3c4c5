"""Run a program with Redis, NATS, RabbitMQ or PostgreSQL without a server.

`FakeStream` stands for a source of a stream, `FakeStagedSink` for a sink, and `FakeRedisLookup` and
`FakePostgresLookup` for lookups. They use the functions and schemas of the connector that they
stand for. So a test sees what they make of real entries and records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import SchemaContext
from penstock.connectors.nats.message import NatsMessage
from penstock.connectors.nats.stream_source import NatsStreamSource
from penstock.connectors.postgres.lookup import PostgresLookup
from penstock.connectors.postgres.records import record_maker
from penstock.connectors.rabbitmq.stream_source import RabbitMessage, RabbitStreamSource
from penstock.connectors.redis.lookup import RedisLookup
from penstock.connectors.redis.stream_entry import RedisEntry
from penstock.connectors.redis.stream_source import RedisStreamSource
from penstock.connectors.staged_sink import StagedSink
from penstock.dataflow.async_io.async_function import AsyncFunction
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.type_variables import PlainValue
from penstock.testing.connectors.fake_target import FakeTargetSink

Entry = RedisEntry | NatsMessage | RabbitMessage


class FakeStream(Source[Any]):
    """Reads entries of a list as a source of Redis, NATS or RabbitMQ would, and ends.

    Arguments:
        source: the source that it stands for.
        entries: instances of `RedisEntry`, `NatsMessage` or `RabbitMessage`, in order.

    Examples:
        >>> from penstock.connectors.redis import RedisEntry, RedisStreamSource
        >>> from penstock.testing.connectors.stream_fakes import FakeStream
        >>> entries = [RedisEntry("orders", "1700000000000-0", {"product": b"tea"})]
        >>> source = FakeStream(RedisStreamSource("orders"), entries)
        >>> list(env.from_source(source).execute_and_collect())
        [{'product': 'tea'}]
    """

    def __init__(
        self,
        source: RedisStreamSource[Any] | NatsStreamSource[Any] | RabbitStreamSource[Any],
        entries: Iterable[RedisEntry] | Iterable[NatsMessage] | Iterable[RabbitMessage],
    ) -> None:
        self.source = source
        self.entries: list[Entry] = list(entries)

    @property
    def side_output_tags(self) -> tuple[OutputTag[Any], ...]:
        """The side output of the source that it stands for."""
        return self.source.side_output_tags

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of one split."""
        del parallelism
        return ListEnumerator([Split("entries")])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of the list."""
        return _FakeReader(self.source, self.entries, context)


class _FakeReader(SourceReader):
    def __init__(self, source: Any, entries: Sequence[Entry], context: ReaderContext) -> None:
        self._source, self._entries, self._next = source, entries, 0
        rabbit = isinstance(source, RabbitStreamSource)
        schema = source.format if rabbit else source.schema
        #: Makes records without a schema. Those of RabbitMQ are then the messages.
        self._decode: Callable[[Any], Any] = (lambda entry: entry) if rabbit else source.decode
        self._decoder = (
            None
            if schema is None
            else MessageDecoder(schema, SchemaContext(metrics=context.metrics))
        )

    def open(self, split: Split, position: Any) -> None:
        del split
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        part = self._entries[self._next : self._next + max_records]
        self._next += len(part)
        timestamps: Sequence[int] = [entry.timestamp for entry in part]
        side_output: list[Any] = []
        if self._decoder is None:
            records = list(map(self._decode, part))
        else:
            contents = list(map(self._content, part))
            decoded = self._decoder.decode(contents, lambda index: f"the fake entry {part[index]}")
            records, timestamps = decoded.records, decoded.pick(timestamps)
            side_output = self._decoder.take_side_output()
        finished = self._next >= len(self._entries)
        return TimedRead(Read(records, self._next, finished, 0.0, side_output), list(timestamps))

    def _content(self, entry: Entry) -> bytes:
        if isinstance(entry, RabbitMessage):
            return entry.body
        return entry.data if isinstance(entry, NatsMessage) else entry.fields[self._source.field]


class FakeStagedSink(FakeTargetSink):
    """Writes what a staged sink would send to its server to a `FakeSystem`.

    A sink to a stream of Redis sends lists of names and values of fields, one to a hash of Redis
    pairs of key and value, and one to a stream of NATS lists of subject, content and headers. One
    to a stream of RabbitMQ sends messages of AMQP, or contents with `amqp=False`. One to PostgreSQL
    sends the names of the columns, and lines of COPY. For Kafka there is `FakeKafkaSink`.

    Arguments:
        sink: the sink that it stands for.
        name: the name of the system.

    Examples:
        >>> from penstock.connectors.redis import RedisStreamSink
        >>> from penstock.testing.connectors.stream_fakes import FakeStagedSink
        >>> sink = RedisStreamSink("totals")
        >>> with FakeSystem("redis") as system:
        ...     _ = env.from_collection([{"tea": 5}]).sink_to(FakeStagedSink(sink, "redis"))
        ...     _ = env.execute()
        >>> system.records
        [[b'tea', b'5']]
    """

    def __init__(self, sink: StagedSink[Any], name: str) -> None:
        super().__init__(name)
        self.sink = sink

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return the encoder of the sink that it stands for."""
        return self.sink.create_encoder(context)


class FakeRedisLookup(AsyncFunction[Any, Any]):
    """Looks up keys in a dict instead of Redis.

    Arguments:
        lookup: the lookup that it stands for.
        values: the value of each key, with the prefix: a str, or a dict for a hash.

    Examples:
        >>> from penstock.connectors.redis import RedisLookup
        >>> from penstock.testing.connectors.stream_fakes import FakeRedisLookup
        >>> lookup = RedisLookup(str, lambda record, found: (record, found), prefix="name:")
        >>> fake = FakeRedisLookup(lookup, {"name:1": "Ada"})
        >>> users = AsyncDataStream.ordered_wait(env.from_collection([1, 2]), fake, 60_000)
        >>> list(users.execute_and_collect())
        [(1, 'Ada'), (2, None)]
    """

    def __init__(self, lookup: RedisLookup[Any, Any], values: Mapping[str, Any]) -> None:
        self.lookup, self.values = lookup, dict(values)

    async def async_invoke(self, value: Any) -> Iterable[Any]:
        """Return the record that `join` makes of the lookup."""
        key = self.lookup.key(value)
        found = None if key is None else self.values.get(self.lookup.prefix + key)
        return [self.lookup.join(value, found)]


class FakePostgresLookup(PostgresLookup):
    """Looks up rows in a list instead of a table of PostgreSQL.

    Arguments:
        lookup: the lookup that it stands for.
        rows: the rows of the table, each a map of its columns.

    Examples:
        >>> from penstock.connectors.postgres import PostgresLookup
        >>> from penstock.testing.connectors.stream_fakes import FakePostgresLookup
        >>> users = PostgresLookup("", "users", key="id", of=lambda n: n, columns=["name"])
        >>> fake = FakePostgresLookup(users, [{"id": 1, "name": "Ada"}])
        >>> named = AsyncDataStream.batched(env.from_collection([1, 2]), fake, 60_000)
        >>> list(named.execute_and_collect())
        [{'name': 'Ada'}, None]
    """

    def __init__(self, lookup: PostgresLookup, rows: Iterable[Mapping[str, Any]]) -> None:
        vars(self).update(vars(lookup))
        self.rows = [dict(row) for row in rows]

    def _ask(self, lists: list[list[Any]]) -> list[tuple[int, Any]]:
        found = [
            (place, row)
            for place, key in enumerate(zip(*lists, strict=True), 1)
            for row in self.rows
            if tuple(row[column] for column in self.key) == key
        ]
        names = list(self.columns or (self.rows[0] if self.rows else ()))
        records = record_maker(self.as_, names)(
            [tuple(row[name] for name in names) for _, row in found]
        )
        return [(place, record) for (place, _), record in zip(found, records, strict=True)]
