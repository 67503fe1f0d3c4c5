"""Keep the newest value of each key in Redis: `RedisHashSink` and `RedisSortedSetSink`.

These sinks write *materialised views*. Writing a value twice would do no harm, but an old writer
that is late would overwrite newer values. So they use the ledger, too, and each snapshot is written
once and in order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.connectors.redis.connection import RedisConnection
from penstock.connectors.redis.ledger import RedisCommand, RedisTarget, RedisWriting
from penstock.connectors.redis.values import LARGEST_COMMAND, as_bytes, bad_record
from penstock.connectors.staged_sink import SinkPlace, StagedSink, Target
from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue, T_contra
from penstock.dataflow.types import Row, RowKind

Scalar = str | bytes | int | float


class RedisViewSink(StagedSink[T_contra]):
    """The base of sinks that keep the newest value of each key.

    Only the last value of a key in a batch is staged.

    Arguments:
        target: the key of Redis that is written to, or the beginning of such keys.
        connection: the URL of the server, or a `RedisConnection`.
        key: returns the key of a record.
        script_records: the number of records that are written in one step.
        patience_seconds: how long to try to reach the server.
    """

    def __init__(
        self,
        target: str,
        connection: str | RedisConnection,
        key: Callable[[T_contra], Scalar],
        script_records: int,
        patience_seconds: float,
    ) -> None:
        if script_records < 1:
            raise GraphError(f"script_records is a number of records, and got {script_records!r}")
        self.target, self.connection = target, RedisConnection.of(connection)
        self.key = key
        self.script_records, self.patience_seconds = script_records, patience_seconds

    @property
    def location(self) -> object:
        """The address of the server, and the key or the beginning of the keys."""
        return f"{self.connection.place} {self.target}"

    @abstractmethod
    def staged_value(self, record: T_contra) -> PlainValue:
        """Return the value for the key of a record, as it is staged; None deletes the key."""

    @abstractmethod
    def commands(self, pairs: Any) -> Iterable[list[RedisCommand]]:
        """Return the commands for pairs of a key and a staged value."""

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that returns the last value of each key of a batch."""
        del context
        return self._encode

    def connect(self, place: SinkPlace) -> Target:
        """Return a connection for the committer."""
        writing = RedisWriting(
            self.connection,
            self.target,
            self.commands,
            self.script_records,
            self.patience_seconds,
        )
        return RedisTarget(writing, place)

    def _encode(self, records: list[Any]) -> PlainValue:
        last: dict[bytes, PlainValue] = {}
        for record in records:
            kind = record.get_row_kind() if isinstance(record, Row) else RowKind.INSERT
            if kind is RowKind.UPDATE_BEFORE:
                continue  # its UPDATE_AFTER has the same key
            try:
                deleted = kind is RowKind.DELETE
                last[as_bytes(self.key(record))] = None if deleted else self.staged_value(record)
            except Exception as error:
                what = f"{type(self).__name__} cannot write a record"
                raise bad_record(what, error, record) from error
        return [[key, value] for key, value in last.items()]


class RedisHashSink(RedisViewSink[T_contra]):
    """Keeps the newest value of each key in Redis hashes, exactly once and in order.

    With `hash`, the view is one hash: its fields are the keys, and `value` returns a str, bytes,
    int or float. With `prefix`, each key has a hash of its own, named `prefix` and the key, and
    `value` returns a dict. The dict replaces the fields that the hash had. If `value` returns None,
    or the record is a `Row` of the kind `DELETE`, the key is deleted.

    Records of one key must come from one subtask, so use `key_by` before.

    Arguments:
        key: returns the key of a record.
        value: returns the value of a record, or None to delete the key.
        connection: the URL of the server, or a `RedisConnection`.
        hash: the name of the hash of the whole view.
        prefix: the beginning of the names of the hashes, one for each key. In a Redis Cluster it
            has a part in braces, such as `{products}:`, because the ledger must be in the same
            hash slot.
        script_records: the number of records that are written in one step. The server serves no
            other client during a step.
        patience_seconds: how long to try to reach the server, before the job restarts and tries
            again.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.redis import RedisHashSink
        >>> sink = RedisHashSink(
        ...     lambda pair: pair[0], lambda pair: pair[1], "redis://localhost", hash="totals"
        ... )
        >>> _ = env.from_collection([("tea", 5)]).key_by(lambda pair: pair[0]).sink_to(sink)
    """

    def __init__(
        self,
        key: Callable[[T_contra], Scalar],
        value: Callable[[T_contra], Scalar | Mapping[str, Scalar] | None],
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        hash: str | None = None,
        prefix: str | None = None,
        script_records: int = 500,
        patience_seconds: float = 60.0,
    ) -> None:
        if (hash is None) == (prefix is None):
            raise GraphError(
                "a RedisHashSink has either hash, the name of one hash for all keys, or prefix, "
                "the beginning of the names of one hash for each key"
            )
        target = hash if prefix is None else prefix
        assert target is not None
        super().__init__(target, connection, key, script_records, patience_seconds)
        self.value, self.hash, self.prefix = value, hash, prefix

    def validate(self) -> None:
        """Raise a `GraphError` if the hashes of a cluster may be in different hash slots."""
        if self.connection.cluster and self.prefix is not None:
            start, _, rest = self.prefix.partition("{")
            if not rest.partition("}")[0] or "}" not in rest:
                raise GraphError(
                    f"in a Redis Cluster, the hashes of a view must be in one hash slot: put a "
                    f"part of the prefix into braces, such as {{{start.rstrip(':') or 'view'}}}:, "
                    f"and got {self.prefix!r}"
                )

    def staged_value(self, record: T_contra) -> PlainValue:
        """Return the value as bytes, or names and values by turns."""
        value: Any = self.value(record)
        if value is None:
            return None
        if self.prefix is None:
            return as_bytes(value)
        if not isinstance(value, Mapping) or not 0 < 2 * len(value) < LARGEST_COMMAND:
            raise TypeError(f"with prefix, the value is a dict with fields, and got {value!r}")
        return [as_bytes(part) for item in value.items() for part in item]

    def commands(self, pairs: Any) -> Iterable[list[RedisCommand]]:
        """Return one command for each key, or two that replace its hash."""
        if self.prefix is None:
            name = self.target.encode()
            for key, value in pairs:
                yield [["HDEL", name, key] if value is None else ["HSET", name, key, value]]
            return
        start = self.prefix.encode()
        for key, value in pairs:
            deletion = ["DEL", start + key]
            yield [deletion] if value is None else [deletion, ["HSET", start + key, *value]]


class RedisSortedSetSink(RedisViewSink[T_contra]):
    """Keeps the newest score of each member of a Redis sorted set, exactly once and in order.

    If `score` returns None, or the record is a `Row` of the kind `DELETE`, the member is removed.
    Records of one member must come from one subtask, so use `key_by` before.

    Arguments:
        sorted_set: the key of the sorted set.
        member: returns the member of a record.
        score: returns the score of a record, or None to remove the member.
        connection: the URL of the server, or a `RedisConnection`.
        script_records: the number of records that are written in one step. The server serves no
            other client during a step.
        patience_seconds: how long to try to reach the server, before the job restarts and tries
            again.

    Examples:
        >>> from penstock.connectors.redis import RedisSortedSetSink
        >>> sink = RedisSortedSetSink("best", lambda pair: pair[0], lambda pair: pair[1])
        >>> _ = env.from_collection([("tea", 5)]).key_by(lambda pair: pair[0]).sink_to(sink)
    """

    def __init__(
        self,
        sorted_set: str,
        member: Callable[[T_contra], Scalar],
        score: Callable[[T_contra], float | None],
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        script_records: int = 500,
        patience_seconds: float = 60.0,
    ) -> None:
        super().__init__(sorted_set, connection, member, script_records, patience_seconds)
        self.score = score

    def staged_value(self, record: T_contra) -> PlainValue:
        """Return the score as text."""
        score = self.score(record)
        if score is None:
            return None
        if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
            raise TypeError(f"the score is a number or None, and got {score!r}")
        return repr(float(score))

    def commands(self, pairs: Any) -> Iterable[list[RedisCommand]]:
        """Return one command for each member."""
        name = self.target.encode()
        for member, score in pairs:
            yield [["ZREM", name, member] if score is None else ["ZADD", name, score, member]]
