"""Read streams of Redis by the ids of their entries: `RedisStreamSource`.

A stream is a split, and the id of an entry is a position. Consumer groups are not used: the groups'
positions are in the server, and would not go back with a snapshot. The enumerator finds out where
each stream begins, and where it ends if the source is bounded. So "latest" is found out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Literal

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.enumerators import NamesEnumerator
from penstock.connectors.formats.schemas import (
    DeserializationSchema,
    check_deserialization_schema,
)
from penstock.connectors.redis.connection import RedisConnection
from penstock.connectors.redis.offsets import RedisOffsets, id_before, parse_id
from penstock.connectors.redis.stream_entry import RedisEntry, fields_as_text
from penstock.connectors.redis.stream_position import START, StreamInfo, StreamPosition
from penstock.connectors.redis.stream_reader import RedisReader, RedisReading, logger, read_info
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import ReaderContext, Source, SourceReader, Split, SplitEnumerator
from penstock.dataflow.type_variables import T_co

OnLostPosition = Literal["fail", "earliest"]


class RedisStreamSource(Source[T_co]):
    """Reads the entries of one or more Redis streams.

    Each stream is a split, so more subtasks than streams have nothing to read. The entries of a
    stream come in their order. The event time of an entry is that in its id.

    If entries were trimmed before the job has read them, the job fails, and the error describes the
    loss. The job also fails if the server has lost its data, or if a stream was deleted and made
    again.

    Arguments:
        streams: the key of the stream, or a list of keys.
        connection: the URL of the server, or a `RedisConnection`.
        start: where to begin without a snapshot; by default at the first entry.
        decode: returns the record for a `RedisEntry`. By default, a record is a dict of the
            fields, as text.
        schema: a `DeserializationSchema` such as `Json(Order)` for the value of one field, instead
            of `decode`.
        field: the name of this field.
        bounded: whether to end at the last entry that each stream has when the job is started.
        on_lost_position: "fail" if entries are lost, or "earliest" to go on with the first one
            that is left. That is counted in the metric `numPositionsLost`, and logged.
        fetch_size: the number of entries that are requested at once.
        patience_seconds: how long a reader tries to reach the server, before the job restarts and
            tries again.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.redis import RedisStreamSource
        >>> source = RedisStreamSource("orders", "redis://localhost:6379/0")
        >>> orders = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps())
    """

    def __init__(
        self,
        streams: str | Iterable[str],
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        start: RedisOffsets | None = None,
        decode: Callable[[RedisEntry], T_co] | None = None,
        schema: DeserializationSchema[T_co] | None = None,
        field: str = "value",
        bounded: bool = False,
        on_lost_position: OnLostPosition = "fail",
        fetch_size: int = 1_000,
        patience_seconds: float = 60.0,
    ) -> None:
        self.streams = [streams] if isinstance(streams, str) else list(streams)
        if not self.streams or len(set(self.streams)) < len(self.streams):
            raise GraphError(f"a RedisStreamSource needs different streams, and got {streams!r}")
        if on_lost_position not in ("fail", "earliest"):
            raise GraphError(
                f'on_lost_position is "fail" or "earliest", and got {on_lost_position!r}'
            )
        if fetch_size < 1:
            raise GraphError(f"fetch_size is the number of entries of a request: {fetch_size!r}")
        self.connection = RedisConnection.of(connection)
        self.start = start or RedisOffsets.earliest()
        self.decode: Callable[[RedisEntry], Any] = decode or fields_as_text
        self.schema, self.field = schema, field
        if schema is not None:
            check_deserialization_schema("schema of RedisStreamSource", schema)
            if decode is not None or not schema.one_to_one:
                raise GraphError(
                    "a RedisStreamSource has either decode or a schema, and the schema makes one "
                    "record of each entry: use flat_map for more of them"
                )
        self.bounded = bounded
        self.on_lost_position = on_lost_position
        self.fetch_size = fetch_size
        self.patience_seconds = patience_seconds

    @property
    def location(self) -> object:
        """The address of the server."""
        return self.connection.place

    @property
    def side_output_tags(self) -> tuple[OutputTag[Any], ...]:
        """The side output of the entries that the schema cannot decode, if it wants one."""
        return () if self.schema is None else side_output_tags(self.schema.on_error)

    def validate(self) -> None:
        """Raise a `GraphError` if there is no beginning for a stream."""
        for stream in self.streams:
            if self.start.kind == "ids" and self.start.id_of(stream) is None:
                raise GraphError(
                    f"RedisOffsets.ids has no id for the stream {stream!r}: add one, or one for "
                    f'"*", which is for all others'
                )

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns the streams."""
        del parallelism
        return _StreamEnumerator(self)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one stream at a time."""
        reading = RedisReading(
            self.streams,
            self.connection,
            self.decode,
            self.schema,
            self.field,
            self.on_lost_position,
            self.fetch_size,
            self.patience_seconds,
        )
        return RedisReader(reading, context)


class _StreamEnumerator(NamesEnumerator):
    """Assigns the streams, with the place where each begins and, if it is bounded, ends."""

    def __init__(self, source: RedisStreamSource) -> None:
        super().__init__(source.streams)
        self._source = source

    def find(self, names: list[str]) -> list[Split]:
        connection = self._source.connection
        splits = []
        with closing(connection.client()) as client:
            for stream in names:
                try:
                    info = read_info(client, stream)
                except Exception as error:
                    raise connection.explain(error, f"read the stream {stream!r}") from error
                splits.append(Split(stream, self._payload(stream, info)))
        return splits

    def _payload(self, stream: str, info: StreamInfo | None) -> Any:
        source = self._source
        if info is None:
            if source.bounded:
                raise JobError(
                    f"there is no stream {stream!r} at {source.connection.place}, and a bounded "
                    f"source does not wait for it: correct its name, or make it with XADD",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            logger.warning(
                "there is no stream %r at %s yet: waiting for its first entry",
                *(stream, source.connection.place),
            )
        start = self._start(stream, info)
        end = None if info is None or not source.bounded else info.last
        return {"start": start.to_plain(), "end": end}

    def _start(self, stream: str, info: StreamInfo | None) -> StreamPosition:
        start = self._source.start
        if start.kind == "ids":
            id = start.id_of(stream) or START
        elif start.kind == "timestamp":
            id = id_before(start.timestamp)
        else:
            id = START if info is None or start.kind == "earliest" else info.last
        if info is None:
            return StreamPosition(id, 0 if id == START else None)
        if start.kind == "ids" and id != START:
            self._require_present(stream, id, info)
        return info.position_at(id)

    def _require_present(self, stream: str, id: str, info: StreamInfo) -> None:
        gone = info.added - info.length
        if not gone or not info.starts_behind(id) or parse_id(id) >= parse_id(info.last):
            return
        what = (
            f"the stream {stream!r} at {self._source.connection.place} is to be read behind the id "
            f"{id}, and entries behind it may be trimmed: {gone} are gone, and the first one is "
            f"{info.first or 'missing'}"
        )
        if self._source.on_lost_position == "fail":
            raise JobError(
                f'{what}. Choose another id, or on_lost_position="earliest"',
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        logger.warning("%s: reading from there", what)
