"""The methods of streams that join them with other streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

from penstock.dataflow.arguments.durations import DurationLike
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.joins.key_types import check_key_types
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.building import OperatorInput, add_as_of_join, add_table_join
from penstock.dataflow.streams.interval_join import AddOperator, IntervalJoin
from penstock.dataflow.streams.join_arguments import table_join_operation
from penstock.dataflow.streams.joined_streams import (
    CoGroupedStreams,
    JoinedStreams,
    co_grouped_streams,
    joined_streams,
)
from penstock.dataflow.streams.joins.as_of_joins import as_of_join_operation

__all__ = ["KeyedStreamJoins", "StreamJoins"]


class StreamJoins:
    """Adds the methods of all streams that join a stream with another one."""

    _environment: BaseEnvironment

    def join(self, other_stream: Any) -> JoinedStreams:
        """Join the records of this stream and another one that have the same key and window.

            orders.join(payments).where(lambda o: o.id).equal_to(lambda p: p.order) \\
                .window(TumblingEventTimeWindows.of(Time.minutes(5))) \\
                .apply(lambda order, payment: (order.id, payment.amount))

        Arguments:
            other_stream: the second stream.

        Returns:
            An object with the method `where`, and so on, as in Flink's Java API.

        Raises:
            GraphError: if `other_stream` is not a stream, or belongs to another environment.
        """
        return joined_streams(*self._paired("join", other_stream), self._stream_of)

    def co_group(self, other_stream: Any) -> CoGroupedStreams:
        """Group the records of this stream and another one by key and window.

        The function gets all records of both streams, even if one stream has no records. So it can
        implement outer joins.

        Arguments:
            other_stream: the second stream.

        Raises:
            GraphError: if `other_stream` is not a stream, or belongs to another environment.
        """
        return co_grouped_streams(*self._paired("co_group", other_stream), self._stream_of)

    def join_table(
        self,
        table: Any,
        on: Any,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: Any = None,
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: Any = None,
    ) -> Any:
        """Join each record with the row of its key in a static table.

            bids.join_table("auctions.parquet", on=lambda bid: bid.auction, key="id",
                            function=lambda bid, row: (row["seller"], bid.price))

        Each worker loads the table once. Snapshots do not contain the table: a job that restarts
        loads it again.

        Arguments:
            table: a mapping from key to row; a `pyarrow.Table`, or a DataFrame of pandas, Polars or
                Spark; the path of a Parquet file or folder; or a function without arguments that
                returns one of these, which each worker calls. A row of a table with columns is a
                dict from column to value.
            on: a function that returns the key of a record; or a field, as in `key_by`.
            key: the name of the table's key column, or the names of several columns. By default,
                they are the fields that `on` names.
            how: "inner" drops a record without a row; "left" keeps it, with the row None.
            function: a `JoinFunction`, or a function `(record, row)` that returns the result. By
                default, the result is the pair `(record, row)`.
            many: whether a key may have several rows. A record is then joined with each of them. A
                mapping then has a list of rows for each key.
            reload_every: the time after which the table is loaded again, in milliseconds, as a
                `timedelta` or as a `Time`. A table in the memory of the program cannot be loaded
                again.
            reload_on: a stream. When it emits a record, all workers load the table again.

        Raises:
            GraphError: if an argument is wrong, if the table cannot be read, or if it has several
                rows for a key.
        """
        operation = table_join_operation(table, on, key, how, function, many, reload_every)
        reloads = None if reload_on is None else self._paired("reload_on", reload_on)[1]
        return self._transform(add_table_join, operation, reloads)

    def _paired(self, method: str, other: Any) -> tuple[OperatorInput, OperatorInput]:
        if not isinstance(other, StreamJoins):
            raise GraphError(f"{method} takes a stream, not {other!r}")
        if other._environment is not self._environment:
            raise GraphError(f"{method} takes a stream of the same environment, and got another")
        return self._input, other._input

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""

    @property
    @abstractmethod
    def _input(self) -> OperatorInput:
        """The records of this stream, for the next operator."""

    @abstractmethod
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> Any:
        """Return a stream of the same environment, which is not keyed, with these outputs."""


class KeyedStreamJoins:
    """Adds the methods of keyed streams that join a stream with another keyed stream."""

    _environment: BaseEnvironment
    _selector: Any
    _key_type: Any

    def interval_join(self, other_stream: Any) -> IntervalJoin:
        """Join each record with records of another stream whose event times are near its own.

            orders.key_by(lambda o: o.id).interval_join(payments.key_by(lambda p: p.order)) \\
                .between(Time.minutes(0), Time.minutes(10)) \\
                .process(lambda order, payment: (order.id, payment.amount))

        Arguments:
            other_stream: the right stream, which has keys of the same type.

        Returns:
            An object with the method `between`, and so on, as in Flink's Java API.

        Raises:
            GraphError: if `other_stream` is not a keyed stream, belongs to another environment, or
                has keys of another declared type.
        """
        return IntervalJoin(self._joining("interval_join", other_stream))

    def as_of_join(
        self,
        versions: Any,
        *,
        how: Literal["inner", "left"] = "inner",
        function: Any = None,
        late_tag: OutputTag | None = None,
    ) -> Any:
        """Join each record with the version of its key that is valid at its event time.

            orders.key_by(lambda o: o.currency).as_of_join(
                rates.key_by(lambda r: r.currency),
                function=lambda order, rate: order.amount * rate.value,
            )

        Each record of `versions` is the valid version of its key from its event time on, until the
        next one. A record is emitted when the watermark has reached its time, with that time. Older
        versions are removed, and the newest one of each key is kept. (Flink: temporal join.)

        Arguments:
            versions: a keyed stream of versions, which has keys of the same type. If two versions
                of a key have the same time, the one that comes later in the stream is valid.
            how: "inner" drops a record without a version; "left" keeps it, with the version None.
            function: a `JoinFunction`, or a function `(record, version)` that returns the result.
                By default, the result is the pair `(record, version)`.
            late_tag: the tag of the side output for late records, whose timestamps are smaller
                than the watermark. Without it, they are dropped.

        Raises:
            GraphError: if `versions` is not a keyed stream of the same environment, or if another
                argument is wrong.
        """
        add = self._joining("as_of_join", versions)
        operation = as_of_join_operation(how, function, late_tag)
        return add(add_as_of_join, operation)

    def _joining(self, method: str, other: Any) -> AddOperator:
        """Return a function that adds an operator with this stream and another one as inputs."""
        if not isinstance(other, KeyedStreamJoins):
            hint = ": call key_by on it" if hasattr(other, "key_by") else ""
            raise GraphError(f"{method} takes a keyed stream, not {other!r}{hint}")
        if other._environment is not self._environment:
            raise GraphError(f"{method} takes a stream of the same environment, and got another")
        check_key_types(self._selector, other._selector, (self._key_type, other._key_type))

        def add(add: Callable[..., OperatorOutput], operation: Any) -> Any:
            return self._stream_of([add(self._input, other._input, operation)])

        return add

    @property
    @abstractmethod
    def _input(self) -> OperatorInput:
        """The records of this stream, for the next operator."""

    @abstractmethod
    def _stream_of(self, outputs: Sequence[OperatorOutput]) -> Any:
        """Return a stream of the same environment, which is not keyed, with these outputs."""
