"""Run a program with topics of Kafka without a broker.

`FakeKafkaSource` stands for a `KafkaSource`, and `FakeKafkaSink` for a `KafkaSink`. They use the
schemas and offsets of the connector that they stand for. A `FakeKafka` has the written messages, by
topic, partition and transaction. Each step of a write can fail.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.connectors.kafka.deserializers import MessagesDecoder
from penstock.connectors.kafka.records import KafkaRecord, KafkaTopicPartition, Offsets
from penstock.connectors.kafka.serializers import MessageBatch
from penstock.connectors.kafka.sink import KafkaSink
from penstock.connectors.kafka.source import KafkaSource
from penstock.connectors.staged_sink import Marker
from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import Committer, SinkWriter, WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    SourceReader,
    Split,
    SplitEnumerator,
    TimedRead,
)
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.testing.connectors.fake_target import FakeSystem, fake_system
from penstock.testing.connectors.stream_fakes import FakeStagedSink, FakeStream

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(frozen=True)
class FakeTransaction:
    """A transaction that a `FakeKafkaSink` has committed.

    Arguments:
        transactional_id: the id that the producer of the real sink has, without the prefix.
        marker: the number of the snapshot, and a hash of its output.
        records: the records, in the order in which they were written.
    """

    transactional_id: str
    marker: Marker
    records: tuple[KafkaRecord, ...]


@dataclass
class FakeKafka(FakeSystem):
    """The topics of Kafka, in memory, to which `FakeKafkaSink` writes.

    A record is in the partition that the program or its key chooses, as with the real sink. Records
    with neither of them are spread over the partitions in turns. The time of a record is -1 if the
    program gives none. See `FakeSystem` about faults; all parts must be in one process.

    Arguments:
        partitions: the number of partitions of topics, by name. Other topics have one.

    Examples:
        >>> with FakeKafka("shop", partitions={"totals": 2}) as kafka:
        ...     sink = KafkaSink("kafka:9092", "totals", Json())
        ...     _ = env.from_collection([{"tea": 5}]).sink_to(FakeKafkaSink(sink, "shop"))
        ...     _ = env.execute()
        >>> [record.value for record in kafka.topic("totals")]
        [b'{"tea":5}']
        >>> [len(transaction.records) for transaction in kafka.transactions]
        [1]
    """

    partitions: Mapping[str, int] = field(default_factory=dict)
    #: The committed transactions, in order.
    transactions: list[FakeTransaction] = field(default_factory=list)
    #: The number of records in each partition.
    ends: Counter[KafkaTopicPartition] = field(default_factory=Counter)

    def topic(self, name: str, partition: int | None = None) -> list[KafkaRecord]:
        """Return the records of a topic, or of one partition, in the order of their commits."""
        return [
            record
            for record in self.records
            if record.topic == name and partition in (None, record.partition)
        ]

    def commit(self, key: str, marker: Marker, written: list[Any]) -> None:
        """Make messages visible together with a marker."""
        records = self.add(written)
        self.markers[key] = marker
        self.transactions.append(FakeTransaction(key, marker, tuple(records)))

    def add(self, batches: Iterable[Any]) -> list[KafkaRecord]:
        """Make messages visible, and return them as records."""
        added = [record for batch in batches for record in self._placed(MessageBatch(*batch))]
        self.records += added
        return added

    def _placed(self, batch: MessageBatch) -> list[KafkaRecord]:
        nothing = [None] * len(batch.values)
        rows = zip(
            batch.values,
            batch.keys or nothing,
            batch.partitions or nothing,
            batch.timestamps or nothing,
            batch.headers or nothing,
            strict=True,
        )
        placed = []
        for value, key, partition, timestamp, headers in rows:
            at = KafkaTopicPartition(batch.topic, self._choose(batch.topic, key, partition))
            pairs = tuple((name, content) for name, content in headers or ())
            # For the client, the time 0 means that there is none.
            record = KafkaRecord(value, key, *at, self.ends[at], timestamp or -1, pairs)
            self.ends[at] += 1
            placed.append(record)
        return placed

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        count = self.partitions.get(topic, 1)
        if partition is not None and partition >= count:
            raise ConnectionError(f"topic {topic!r} has no partition {partition}")
        if partition is not None and partition >= 0:
            return partition
        if key is not None:
            return _murmur2(key) % count
        return sum(self.ends[KafkaTopicPartition(topic, one)] for one in range(count)) % count


def _murmur2(key: bytes) -> int:
    """Return the hash by which clients choose a partition, as a positive number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of an old function of the library
        murmur2 = import_module("kafka.partitioner.default").murmur2
    return int(murmur2(key)) & 0x7FFFFFFF


class FakeKafkaSink(FakeStagedSink):
    """Writes what a `KafkaSink` would send to its brokers to a `FakeKafka`.

    With the guarantee exactly once, the output of each snapshot is one transaction. Otherwise
    records are there at once.

    Arguments:
        sink: the sink that it stands for.
        name: the name of the `FakeKafka`.

    Examples:
        >>> names = KafkaRecordSerializationSchema(
        ...     "names", SimpleStringSchema(), key=SimpleStringSchema(), key_of=str.lower
        ... )
        >>> with FakeKafka("shop") as kafka:
        ...     fake = FakeKafkaSink(KafkaSink("kafka:9092", names), "shop")
        ...     _ = env.from_collection(["Ada"]).sink_to(fake)
        ...     _ = env.execute()
        >>> [(record.key, record.value) for record in kafka.topic("names", partition=0)]
        [(b'ada', b'Ada')]
    """

    def __init__(self, sink: KafkaSink[Any], name: str) -> None:
        super().__init__(sink, name)
        self.exactly_once = sink.exactly_once

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages records, or one that sends them at once."""
        return super().create_writer(context) if self.exactly_once else _Sender(self, context)

    def create_committer(self) -> Committer | None:  # type: ignore[override]
        """Return the committer of staged output; None if there is none."""
        return super().create_committer() if self.exactly_once else None


class _Sender(SinkWriter):
    def __init__(self, sink: FakeKafkaSink, context: WriterContext) -> None:
        self._encode: Any = sink.create_encoder(context)
        self._name = sink.name

    def write(self, batch: list[Any]) -> None:
        kafka = fake_system(self._name)
        assert isinstance(kafka, FakeKafka), "a FakeKafkaSink writes to a FakeKafka"
        kafka.step("write")
        kafka.add(self._encode(batch))


class FakeKafkaSource(FakeStream):
    """Reads given records as a `KafkaSource` would, and ends.

    Each partition is a split. The topics, partitions, and starting and stopping offsets are those
    of the source. A group has committed no offsets.

    Arguments:
        source: the source that it stands for.
        records: the records of all topics, with values and keys of bytes. A record without a
            partition is in partition 0, and one without a topic in the only topic of the source.
            Offsets are given to them in their order.

    Raises:
        GraphError: if a record has no topic, or a value that is not bytes.

    Examples:
        >>> records = [KafkaRecord(b"3", key=b"ann"), KafkaRecord(b"4", key=b"bob", partition=1)]
        >>> source = FakeKafkaSource(KafkaSource("kafka:9092", "orders", Json()), records)
        >>> sorted(env.from_source(source).execute_and_collect())
        [3, 4]
    """

    def __init__(self, source: KafkaSource[Any], records: Iterable[KafkaRecord]) -> None:
        self.source: Any = source
        self.record_classes = source.record_classes
        self.places: defaultdict[KafkaTopicPartition, list[KafkaRecord]] = defaultdict(list)
        only = source.topics[0] if len(source.topics) == 1 else ""
        for record in records:
            if not (record.topic or only):
                raise GraphError(f"the fake source has several topics, and none is in {record!r}")
            for part in (record.value, record.key):
                if not isinstance(part, bytes | None):
                    raise GraphError(f"values and keys in Kafka are bytes, and not {part!r}")
            at = KafkaTopicPartition(record.topic or only, max(0, record.partition))
            place = self.places[at]
            place.append(record._replace(topic=at.topic, partition=at.partition, offset=len(place)))

    @property
    def reads_in_turns(self) -> bool:
        """Whether a task reads all its partitions at once, as the real source does."""
        return True

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of the partitions that the source reads."""
        del parallelism
        source, client = self.source, _FakeTopics(self.places)
        chosen = sorted(filter(self._reads, self.places))
        first: Offsets = source.starting_offsets.resolve(client, chosen)
        last: Offsets = {at: len(self.places[at]) for at in chosen}
        if source.stopping_offsets is not None:
            last = source.stopping_offsets.resolve(client, chosen)
        return ListEnumerator(
            [Split(f"{at.topic}-{at.partition}", [*at, first[at], last[at]]) for at in chosen]
        )

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one partition."""
        return _FakePartition(self, context.metrics)

    def _reads(self, at: KafkaTopicPartition) -> bool:
        source = self.source
        if source.partitions is not None:
            return at in source.partitions
        if source.topic_pattern is not None:
            return re.fullmatch(source.topic_pattern, at.topic) is not None
        return at.topic in source.topics


class _FakeTopics:
    """Answers what a `TopicClient` asks the brokers."""

    group = None

    def __init__(self, places: Mapping[KafkaTopicPartition, Sequence[KafkaRecord]]) -> None:
        self._places = places

    def range(self, at: KafkaTopicPartition) -> tuple[int, int]:
        return 0, len(self._places[at])

    def offsets_at(self, partitions: Sequence[KafkaTopicPartition], timestamp: int) -> Offsets:
        return {
            at: next(
                (one.offset for one in self._places[at] if one.timestamp >= timestamp),
                len(self._places[at]),
            )
            for at in partitions
        }

    def committed(self, partitions: Sequence[KafkaTopicPartition]) -> Offsets:
        del partitions
        return {}


class _FakePartition(SourceReader):
    """Reads the records of one partition, which it turns into messages of the client."""

    def __init__(self, fake: FakeKafkaSource, metrics: MetricGroup) -> None:
        self._fake, self._metrics = fake, metrics
        self._messages: list[Message] = []
        self._decoder: MessagesDecoder | None = None
        self._position = self._stop = 0

    def open(self, split: Split, position: Any) -> None:
        payload: Any = split.payload
        topic, partition, start, self._stop = payload
        self._position = start if position is None else position
        self._decoder = self._fake.source.deserializer.open(topic, self._metrics)
        place = KafkaTopicPartition(topic, partition)
        self._messages = list(map(_message, self._fake.places[place]))

    def read(self, max_records: int) -> Read:
        decoder = self._decoder
        assert decoder is not None, "read before open"
        part = self._messages[self._position : min(self._position + max_records, self._stop)]
        self._position += len(part)
        decoded = decoder.decode(part)
        times = decoded.pick([message.timestamp()[1] for message in part])
        finished = self._position >= self._stop
        read = Read(decoded.records, self._position, finished, 0.0, decoder.take_side_output())
        return TimedRead(read, [time if time >= 0 else NO_TIMESTAMP for time in times])


def _message(record: KafkaRecord) -> Message:
    from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

    kind = TIMESTAMP_CREATE_TIME if record.timestamp >= 0 else TIMESTAMP_NOT_AVAILABLE
    return Message(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        timestamp=(kind, record.timestamp),
    )
