"""Define `DataStream`, the stream of a program, and its methods.

Names and semantics are the same as in PyFlink. A stream is a tuple of operator outputs, each with a
partitioning. A method that transforms a stream checks its arguments, adds an operator to the job
graph with a function of `building.py`, and returns a stream with the operator's output. Nothing
runs before the program calls `execute`.

The classes of this folder return each other. So most of their modules import the others for type
hints only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeAlias, overload

from penstock.dataflow.arguments.aliases import UsedNames
from penstock.dataflow.arguments.durations import DurationLike, whole_number
from penstock.dataflow.arguments.fields import value_of
from penstock.dataflow.arguments.pyflink_names import STREAM, PyFlinkNames
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.columns.arrow import require_pyarrow
from penstock.dataflow.columns.batch_function import BatchFunction, BatchOperation
from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    JoinFunction,
    KeySelector,
    KeySelectorLike,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
    check_function,
)
from penstock.dataflow.graph.cached_streams import StoredRecords
from penstock.dataflow.graph.event_time import gives_timestamps
from penstock.dataflow.graph.job_graph import Chaining, OperatorOutput, Partitioning
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.program import CloseableIterator
from penstock.dataflow.sink import Sink
from penstock.dataflow.state import MapStateDescriptor, StateTtlConfig
from penstock.dataflow.streams.aggregations import projection
from penstock.dataflow.streams.broadcast_stream import BroadcastConnectedStream, BroadcastStream
from penstock.dataflow.streams.building import (
    ANY_TYPE,
    OperatorInput,
    add_filter,
    add_flat_map,
    add_map,
    add_map_batches,
    add_operator,
    add_process,
    add_sink,
    add_table_join,
    add_timestamps,
    partitioned,
    side_output_of,
    type_of,
)
from penstock.dataflow.streams.connected_streams import ConnectedStreams
from penstock.dataflow.streams.grouped_stream import GroupedStream
from penstock.dataflow.streams.join_arguments import table_join_operation
from penstock.dataflow.streams.joined_streams import CoGroupedStreams, JoinedStreams
from penstock.dataflow.streams.key_selectors import (
    KeyFields,
    check_key_selector,
    declared_key_type,
)
from penstock.dataflow.streams.operator_settings import OperatorSettings
from penstock.dataflow.streams.record_functions import FirstOfKey, RandomSample
from penstock.dataflow.streams.record_table import RecordTable
from penstock.dataflow.streams.sink import DataStreamSink
from penstock.dataflow.streams.windowed_stream import AllWindowedStream, count_windows, time_windows
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy, check_watermark_strategy
from penstock.dataflow.type_variables import K, R, T, T_co, UserValue
from penstock.dataflow.types import TypeInformation, check_type_info
from penstock.dataflow.windows import CountWindow, WindowAssigner
from penstock.dataflow.windows.window import W

if TYPE_CHECKING:
    from penstock.dataflow.streams.feedback import IterativeStream
    from penstock.dataflow.streams.keyed_stream import KeyedStream

_Selector: TypeAlias = Callable[[T_co], K] | KeySelector[T_co, K]


class DataStream(PyFlinkNames, OperatorSettings, Generic[T_co]):
    """A stream of records in a program. (Flink: `DataStream`.)

    If a method takes an object of a function class, it also takes a plain function or lambda. Only
    `process` needs an object. Types need not be declared. If `output_type` is given, the emitted
    records are checked and converted (`docs/guides/types.md`). The argument `key_type` is ignored.

    `DataStream[T]` has records of type `T`.

    Examples:
        >>> numbers = env.from_sequence(1, 5)
        >>> list(numbers.filter(lambda n: n % 2).map(lambda n: 10 * n).execute_and_collect())
        [10, 30, 50]
    """

    _missing = STREAM

    #: The function that returns the key of a record; None if the stream is not keyed.
    _selector: KeySelectorLike | None = None

    def get_execution_environment(self) -> BaseEnvironment:
        """Return the environment that the stream belongs to."""
        return self._environment

    def get_name(self) -> str:
        """Return the name of the operator that was added last."""
        return self._operator("get_name()").name

    def get_type(self) -> TypeInformation:
        """Return the declared type of the records.

        It is `Types.PICKLED_BYTE_ARRAY()`, the type of any record, if no type was declared, for
        side outputs, and for a union of streams of several types.
        """
        return type_of(self._input)

    def start_new_chain(self) -> Self:
        """Begin a new operator chain: do not chain the operator to the operators before it."""
        self._operator("chaining").chaining = Chaining.HEAD
        return self

    # ---- transformations

    def map(
        self, func: Callable[[T_co], R] | MapFunction[T_co, R], output_type: object = None
    ) -> DataStream[R]:
        """Add an operator that emits the result of `func` for each record."""
        check_type_info("output_type", output_type)
        function = check_function(func, MapFunction, "map")
        return self._emitting(add_map(self._input, "Map", function), output_type)

    def flat_map(
        self,
        func: Callable[[T_co], Iterable[R]] | FlatMapFunction[T_co, R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Add an operator that calls `func` for each record. `func` returns an iterable.

        The operator emits the items of the iterable.
        """
        check_type_info("output_type", output_type)
        function = check_function(func, FlatMapFunction, "flat_map")
        return self._emitting(add_flat_map(self._input, "Flat Map", function), output_type)

    def filter(self, func: Callable[[T_co], object] | FilterFunction[T_co]) -> DataStream[T_co]:
        """Add an operator that keeps only the records for which `func` returns a true value."""
        function = check_function(func, FilterFunction, "filter")
        return self._emitting(add_filter(self._input, "Filter", function))

    def project(self, *field_indexes: int) -> DataStream[tuple[UserValue, ...]]:
        """Add an operator that emits tuples of some fields of each record, which is a tuple.

        Arguments:
            field_indexes: the positions of the fields.

        Raises:
            GraphError: if a position is not a whole number of at least 0, or if there is none.
        """
        fields = [whole_number("the position of a field", index) for index in field_indexes]
        if not fields:
            raise GraphError("project takes the positions of fields: project(0, 2)")
        return self._emitting(add_map(self._input, "Projection", projection(fields)))

    def process(self, func: ProcessFunction[T_co, R], output_type: object = None) -> DataStream[R]:
        """Add an operator that runs a `ProcessFunction`.

        The function emits any number of records for each input record, and at the end of the input.

        Raises:
            GraphError: if `func` is not a `ProcessFunction`.
        """
        check_type_info("output_type", output_type)
        if not isinstance(func, ProcessFunction):
            raise GraphError(
                f"process on a stream without keys takes a ProcessFunction, not {func!r}"
            )
        return self._emitting(add_process(self._input, "Process", func), output_type)

    def transform(
        self, name: str, spec: OperatorSpec, function: object = None, output_type: object = None
    ) -> DataStream:
        """Add an operator of your own. (Flink: `DataStream.transform`.)

        The page "Cookbook" of the documentation shows how to write one.

        Arguments:
            name: the name that plans, reports and errors show.
            spec: the specification of the operator, with its builders.
            function: the function or the settings of the operator.
            output_type: the type of the records that it emits, which are checked.

        Raises:
            GraphError: if the specification is not that of an operator with one input, or if it has
                keyed state and the stream has no keys.
        """
        check_type_info("output_type", output_type)
        return self._emitting(add_operator(self._input, name, function, spec), output_type)

    def get_side_output(self, output_tag: OutputTag[R]) -> DataStream[R]:
        """Return the stream of the records that the operator emits with `output_tag`."""
        return DataStream(self._environment, [side_output_of(self._outputs, output_tag)])

    @overload
    def map_batches(
        self,
        func: Callable[[list[T_co]], Iterable[R]],
        format: Literal["rows"],
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: object = None,
    ) -> DataStream[R]: ...

    @overload
    def map_batches(
        self,
        func: Callable[[UserValue], UserValue] | BatchFunction,
        format: Literal["arrow", "pandas", "polars"] = "arrow",
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: object = None,
    ) -> DataStream: ...

    def map_batches(
        self,
        func: Callable[[UserValue], UserValue] | BatchFunction,
        format: str = "arrow",
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: object = None,
    ) -> DataStream:
        """Add an operator that calls `func` for each batch of records.

            stream.map_batches(lambda batch: batch.filter(pc.field("amount") > 0))

        A batch contains the records that have arrived. So batch sizes differ between runs, and
        results must not depend on them. `func` returns a `pyarrow.RecordBatch` or `Table`, a data
        frame of pandas or Polars, or a list of records. The format of the result may differ from
        the format of the argument.

        Arguments:
            func: a function of a batch, or a `BatchFunction`.
            format: the format of the argument of `func`: "arrow" (a `pyarrow.RecordBatch`),
                "pandas" or "polars" (a data frame), or "rows" (a list of records).
            keep_rows: whether `func` returns exactly one row for each row, in their order. Each row
                then keeps its event time. If the number of rows differs, the job fails.
            timestamps: the column of the result that holds the event times, as times or as
                milliseconds since the epoch. Without it and without `keep_rows`, results have no
                event times.
            schema: the types of the columns, if the stream has rows: a `pyarrow.Schema`, or a dict
                of names and types. Without it, the types are inferred from the values of each
                batch.

        Raises:
            GraphError: if an argument is wrong, or a package is not installed.
        """
        operation = BatchOperation(func, format, keep_rows, timestamps, schema)
        return self._emitting(add_map_batches(self._input, operation))

    def distinct(
        self, by: object = None, ttl: StateTtlConfig | DurationLike | None = None
    ) -> DataStream[T_co]:
        """Keep the first of equal records.

        The stream is partitioned by the compared values: the records, or the results of `by`.

        Arguments:
            by: the value that is compared: a function of one record, or the position or name of a
                field. With None, whole records are compared, and their type must be allowed for
                keys.
            ttl: how long a record is remembered, by processing time: a `StateTtlConfig`, or a time.
                With None, no record is forgotten, so the state may grow without limit.

        Raises:
            GraphError: if `by` or `ttl` is not one of these values.
        """
        if ttl is not None and not isinstance(ttl, StateTtlConfig):
            ttl = StateTtlConfig.new_builder(ttl).build()
        keyed = self.key_by(value_of("distinct", by))
        return self._emitting(add_filter(keyed._input, "Distinct", FirstOfKey(ttl)))

    def sample(self, fraction: float, seed: int | None = None) -> DataStream[T_co]:
        """Keep each record with a probability.

        Arguments:
            fraction: the probability, from 0 to 1.
            seed: a whole number. With the same seed, the same records are kept, if the records of
                each subtask have the same order. With None, each run has a different sample.

        Raises:
            GraphError: if `fraction` is not from 0 to 1, or if `seed` is not a whole number.
        """
        number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not number or not 0 <= fraction <= 1:
            raise GraphError(f"the fraction of a sample is a number from 0 to 1, not {fraction!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise GraphError(f"the seed of a sample is a whole number, not {seed!r}")
        return self._emitting(add_filter(self._input, "Sample", RandomSample(fraction, seed)))

    def cache(self) -> CachedDataStream[T_co]:
        """Store the records when they are first computed, for later executions.

        Later executions of this environment read the stored records. The records are in files on
        this machine, which are removed when the program ends. (PyFlink: `cache`.)

        Returns:
            A `CachedDataStream`: this stream, with a method `invalidate`.

        Raises:
            GraphError: if the stream comes from an unbounded source.
        """
        # The import is inside the method because connectors import this package.
        from penstock.connectors.cache import RecordCache

        output = add_map(self._input, "Cache", _same)
        graph = self._environment._graph
        ids = graph.upstream([output.operator.id])
        before = [one for one in graph.operators if one.id in ids]
        for one in before:
            if one.spec.is_source and not one.function.ends:
                raise GraphError(
                    f"cache() stores all records of a stream, and {one.name!r} is unbounded: write "
                    f"the records to a sink"
                )
        timed = any(map(gives_timestamps, before))
        records = RecordCache(timed, [one.function for one in before if one is not output.operator])
        self._environment._add_cache(output, records)
        return CachedDataStream(self._environment, output, records)

    # ---- keys and partitioning

    @overload
    def key_by(
        self, key_selector: _Selector[T_co, K], *more_fields: object, key_type: object = None
    ) -> KeyedStream[K, T_co]: ...

    @overload
    def key_by(
        self, key_selector: KeyFields, *more_fields: object, key_type: object = None
    ) -> KeyedStream[UserValue, T_co]: ...

    def key_by(
        self,
        key_selector: _Selector[T_co, UserValue] | KeyFields,
        *more_fields: object,
        key_type: object = None,
    ) -> KeyedStream[UserValue, T_co]:
        """Partition the records by key: records with equal keys go to the same subtask.

            stream.key_by(lambda record: record[0])
            stream.key_by(0)
            stream.key_by("user", "day")

        Arguments:
            key_selector: a function that returns the key of a record; or a field by its position or
                name, or a tuple of these. `docs/guides/types.md` lists the allowed types of keys.
            more_fields: more fields. The key is then a tuple with the values of all fields.
            key_type: the type of the keys, such as `Types.STRING()`. Only joins use it: they refuse
                streams with keys of different types. It may also be the second argument.

        Raises:
            GraphError: if an argument is something else.
        """
        # The import is inside the method because `KeyedStream` is a subclass.
        from penstock.dataflow.streams.keyed_stream import KeyedStream

        selector = check_key_selector(key_selector, *more_fields, key_type=key_type)
        outputs = partitioned(self._outputs, Partitioning.HASH, selector)
        declared = declared_key_type(more_fields, key_type)
        return KeyedStream(self._environment, outputs, selector, declared)

    def group_by(self, *columns: str) -> GroupedStream:
        """Group the rows by columns, for aggregations that process whole columns.

            stream.group_by("user").agg(total=("amount", "sum"), n=("*", "count"))

        Rows with equal keys go to the same subtask.

        Arguments:
            columns: the names of the columns of the key.

        Raises:
            GraphError: if there is no name, or pyarrow is not installed.
        """
        require_pyarrow("group_by")
        return GroupedStream(self, ColumnKey(columns))

    def forward(self) -> DataStream[T_co]:
        """Send all records of subtask i to subtask i of the next operator.

        Both operators must have the same parallelism.
        """
        return self._repartition(Partitioning.FORWARD)

    def rebalance(self) -> DataStream[T_co]:
        """Send the records to all subtasks of the next operator in turn."""
        return self._repartition(Partitioning.REBALANCE)

    def rescale(self) -> DataStream[T_co]:
        """Send the records of each subtask to a few subtasks of the next operator in turn.

        This needs fewer channels than `rebalance`.
        """
        return self._repartition(Partitioning.RESCALE)

    def shuffle(self) -> DataStream[T_co]:
        """Send each record to a random subtask of the next operator, with equal probability."""
        return self._repartition(Partitioning.SHUFFLE)

    def global_(self) -> DataStream[T_co]:
        """Send every record to the first subtask of the next operator."""
        return self._repartition(Partitioning.GLOBAL)

    def partition_custom(
        self,
        partitioner: Callable[[K, int], int] | Partitioner[K],
        key_selector: Callable[[T_co], K] | KeySelector[T_co, K],
    ) -> DataStream[T_co]:
        """Send each record to the subtask that `partitioner` chooses for its key.

        Arguments:
            partitioner: a function that is called as `partitioner(key, number_of_subtasks)`, and
                returns the index of a subtask of the next operator.
            key_selector: a function that returns the key of a record.
        """
        partitioner = check_function(partitioner, Partitioner, "partition_custom")
        selector = check_function(key_selector, KeySelector, "partition_custom")
        return self._repartition(Partitioning.CUSTOM, selector, partitioner)

    @overload
    def broadcast(self) -> DataStream[T_co]: ...

    @overload
    def broadcast(
        self, state_descriptor: MapStateDescriptor, /, *state_descriptors: MapStateDescriptor
    ) -> BroadcastStream[T_co]: ...

    def broadcast(
        self, *state_descriptors: MapStateDescriptor
    ) -> DataStream[T_co] | BroadcastStream[T_co]:
        """Send every record to all subtasks of the next operator.

        Arguments:
            state_descriptors: the descriptors of the broadcast states in which the next operator
                keeps the records. With them, the result is a `BroadcastStream`, which is passed to
                `connect`. Without them it is a stream like this one.

        Raises:
            GraphError: if an argument is not a `MapStateDescriptor`, or if two have the same name.
        """
        stream = self._repartition(Partitioning.BROADCAST)
        if not state_descriptors:
            return stream
        names, aliases = set[str](), UsedNames("states of one operator")
        for descriptor in state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise GraphError(f"broadcast takes MapStateDescriptors, not {descriptor!r}")
            if descriptor.name in names:
                raise GraphError(f"broadcast got two descriptors with the name {descriptor.name!r}")
            names.add(descriptor.name)
            aliases.add(descriptor.name, descriptor.aliases)
        return BroadcastStream(stream, state_descriptors)

    # ---- several streams

    def union(self, *streams: DataStream[R]) -> DataStream[T_co | R]:
        """Return a stream with the records of this stream and of other streams, in any order.

        The union of keyed streams is not keyed.

        Raises:
            GraphError: if an argument is not a stream, or belongs to another environment.
        """
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise GraphError(f"union takes streams, not {stream!r}")
            if stream._environment is not self._environment:
                raise GraphError("union takes streams of one environment, and got one of another")
        outputs = [output for stream in (self, *streams) for output in stream._outputs]
        return DataStream(self._environment, outputs)

    @overload
    def connect(self, ds: DataStream[R]) -> ConnectedStreams[T_co, R]: ...

    @overload
    def connect(self, ds: BroadcastStream[R]) -> BroadcastConnectedStream[T_co, R]: ...

    def connect(
        self, ds: DataStream[R] | BroadcastStream[R]
    ) -> ConnectedStreams[T_co, R] | BroadcastConnectedStream[T_co, R]:
        """Connect this stream with another one, to process both with one operator.

        Arguments:
            ds: a stream, or a stream that `broadcast` with a state descriptor has returned.

        Returns:
            A `ConnectedStreams`, or a `BroadcastConnectedStream`.

        Raises:
            GraphError: if `ds` is not a stream, or belongs to another environment.
        """
        if isinstance(ds, BroadcastStream):
            self._check_other("connect", ds._stream)
            return BroadcastConnectedStream(self, ds)
        self._check_other("connect", ds)
        return ConnectedStreams(self, ds)

    def iterate(self, max_wait_time_millis: float | None = None) -> IterativeStream[T_co]:
        """Begin a loop: return a union of this stream and the records that are fed back.

            loop = numbers.iterate()
            smaller = loop.map(lambda n: n - 1)
            loop.close_with(smaller.filter(lambda n: n > 0))

        The loop ends when this stream has ended and no record is left in the loop.

        Arguments:
            max_wait_time_millis: an argument of PyFlink, which Penstock ignores. In Flink, a loop
                ends when it has received no record for this time.
        """
        # The import is inside the method because `IterativeStream` is a subclass.
        from penstock.dataflow.streams.feedback import IterativeStream

        del max_wait_time_millis
        return IterativeStream(self, self._environment._add_iteration())

    def join(self, other_stream: DataStream[R]) -> JoinedStreams[T_co, R]:
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
        self._check_other("join", other_stream)
        return JoinedStreams(self, other_stream)

    def co_group(self, other_stream: DataStream[R]) -> CoGroupedStreams[T_co, R]:
        """Group the records of this stream and another one by key and window.

        The function gets all records of both streams, even if one stream has no records. So it can
        implement outer joins.

        Arguments:
            other_stream: the second stream.

        Raises:
            GraphError: if `other_stream` is not a stream, or belongs to another environment.
        """
        self._check_other("co_group", other_stream)
        return CoGroupedStreams(self, other_stream)

    @overload
    def join_table(
        self,
        table: object,
        on: Callable[[T_co], UserValue] | KeySelector[T_co, UserValue] | KeyFields,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: None = None,
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: DataStream | None = None,
    ) -> DataStream[tuple[T_co, UserValue]]: ...

    @overload
    def join_table(
        self,
        table: object,
        on: Callable[[T_co], UserValue] | KeySelector[T_co, UserValue] | KeyFields,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: JoinFunction[T_co, UserValue, R] | Callable[[T_co, UserValue], R],
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: DataStream | None = None,
    ) -> DataStream[R]: ...

    def join_table(
        self,
        table: object,
        on: Callable[[T_co], UserValue] | KeySelector[T_co, UserValue] | KeyFields,
        *,
        key: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        function: object = None,
        many: bool = False,
        reload_every: DurationLike | None = None,
        reload_on: DataStream | None = None,
    ) -> DataStream:
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
        reloads = None
        if reload_on is not None:
            self._check_other("reload_on", reload_on)
            reloads = reload_on._input
        return self._emitting(add_table_join(self._input, operation, reloads))

    # ---- event time and windows

    def assign_timestamps_and_watermarks(
        self, watermark_strategy: WatermarkStrategy[T_co]
    ) -> DataStream[T_co]:
        """Give each record a timestamp, and generate watermarks.

        Watermarks from before this operator are dropped, except the last one at the end of the
        input.

        Arguments:
            watermark_strategy: how records get timestamps and watermarks.

        Raises:
            GraphError: if `watermark_strategy` is not a `WatermarkStrategy`.
        """
        method = "assign_timestamps_and_watermarks"
        check_watermark_strategy(watermark_strategy, method)
        if watermark_strategy is None:
            raise GraphError(f"{method} takes a WatermarkStrategy, not None")
        return self._emitting(add_timestamps(self._input, watermark_strategy))

    def window_all(self, window_assigner: WindowAssigner[T_co, W]) -> AllWindowedStream[T_co, W]:
        """Group all records by windows. One subtask processes the windows.

        Arguments:
            window_assigner: chooses the windows of a record.
        """
        return AllWindowedStream(self, window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream[T_co, CountWindow]:
        """Group all records by windows of `size` records; see `KeyedStream.count_window`."""
        return self.window_all(count_windows(size, slide))

    def reduce_by_window(
        self,
        func: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co],
        size: DurationLike,
        slide: DurationLike | None = None,
        inverse: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co] | None = None,
    ) -> DataStream[T_co]:
        """Combine the records of each event-time window into one record.

        On a keyed stream, the records of each key are combined. Otherwise one subtask combines all
        records. (Discretized Streams: `reduceByWindow`.)

        Arguments:
            func: a function that combines two records.
            size: the length of a window, in milliseconds, as a `timedelta` or as a `Time`.
            slide: the time between the starts of two windows. With None, it is `size`.
            inverse: a function `(result, leaving)` that subtracts the part that leaves the window
                from the result. With it, only the records that enter and leave a window are
                processed, so the size of the window does not matter.

        Raises:
            GraphError: if an argument is wrong, or if the records have no event times.
        """
        return self.window_all(time_windows(size, slide)).reduce(func, inverse=inverse)

    # ---- results

    def sink_to(self, sink: Sink[T_co]) -> DataStreamSink:
        """Write the records to a sink.

        Raises:
            GraphError: if `sink` is not a `Sink`, or if the sink finds a mistake in its arguments.
        """
        if not isinstance(sink, Sink):
            raise GraphError(f"sink_to takes a Sink, not {sink!r}; for a function use add_sink")
        sink.validate()
        return DataStreamSink(self._environment, [add_sink(self._input, sink)])

    def add_sink(
        self, sink_func: Callable[[T_co], object] | SinkFunction[T_co] | Sink[T_co]
    ) -> DataStreamSink:
        """Call a function with each record, at least once.

        After a failure, the function may be called with the same records again.
        """
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        # The import is inside the method because connectors import this package.
        from penstock.connectors import FunctionSink

        return self.sink_to(FunctionSink(check_function(sink_func, SinkFunction, "add_sink")))

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print the records. If there are several subtasks, also print the subtask's number.

        Records of a declared type are printed as Flink prints them, others as Python does.

        Arguments:
            sink_identifier: a text that is printed before each record.
        """
        from penstock.connectors import PrintSink

        kind = self.get_type()
        sink = PrintSink(sink_identifier, type_info=kind if kind != ANY_TYPE else None)
        return self.sink_to(sink).name("Print to Std. Out")

    @overload
    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        limit: None = None,
        *,
        in_process: bool | None = None,
    ) -> CloseableIterator[T_co]: ...

    @overload
    def execute_and_collect(
        self, job_execution_name: str | None, limit: int, *, in_process: bool | None = None
    ) -> list[T_co]: ...

    @overload
    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        *,
        limit: int,
        in_process: bool | None = None,
    ) -> list[T_co]: ...

    def execute_and_collect(
        self,
        job_execution_name: str | None = None,
        limit: int | None = None,
        *,
        in_process: bool | None = None,
    ) -> CloseableIterator[T_co] | list[T_co]:
        """Run the operators that this stream depends on, and return its records.

        No sink of the program runs. Sinks that were added before wait for `execute`, and a warning
        names them, because in PyFlink they would run.

        Arguments:
            job_execution_name: the name of the job. If it is None, the name in the settings is
                used.
            limit: the number of records to return. If it is None, all records are returned.
            in_process: whether to run the job inside this process. The job then makes progress
                only while the program waits for the next record.

        Returns:
            A list of records if `limit` is given, else a `CloseableIterator` over the records.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        self._environment._warn_of_pending_sinks()
        records = self._environment._collect(self._outputs, job_execution_name, in_process)
        return records if limit is None else _first(records, limit)

    def take(self, n: int, *, in_process: bool | None = None) -> list[T_co]:
        """Run the operators that this stream depends on, and return its first `n` records.

        The job is then stopped. The list is shorter if the stream ends before. No sink of the
        program runs: `execute` runs them.

        Arguments:
            n: the number of records.
            in_process: as for `execute_and_collect`.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        limit = whole_number("the number of records", n, least=1)
        return _first(self._environment._collect(self._outputs, None, in_process), limit)

    def show(self, n: int = 20, *, in_process: bool | None = None) -> None:
        """Run the operators that this stream depends on, and show its first records as a table.

        In a notebook the table is a part of the page; else it is printed. No sink of the program
        runs: `execute` runs them.

        Arguments:
            n: the largest number of records.
            in_process: as for `execute_and_collect`.

        Raises:
            GraphError, JobError, StoreError: as for `StreamExecutionEnvironment.execute`.
        """
        n = whole_number("the number of records", n, least=1)
        records = self.take(n + 1, in_process=in_process)
        RecordTable(records[:n], more=len(records) > n).display()

    # ---- for the other classes of streams

    @property
    def _input(self) -> OperatorInput:
        """The records of this stream, for the next operator."""
        return OperatorInput(self._environment, self._outputs, self._selector)

    def _emitting(self, output: OperatorOutput, output_type: object = None) -> DataStream:
        """Return the stream of the records that an operator emits.

        Arguments:
            output: the output of the operator, which has just been added.
            output_type: the declared type of the records. None and Python classes are ignored.
        """
        if isinstance(output_type, TypeInformation):
            output.operator.result_type = output_type
        return DataStream(self._environment, [output])

    def _repartition(
        self,
        partitioning: Partitioning,
        selector: KeySelectorLike | None = None,
        partitioner: object = None,
    ) -> DataStream[T_co]:
        """Return a stream of the same records with another partitioning."""
        outputs = partitioned(self._outputs, partitioning, selector, partitioner)
        return DataStream(self._environment, outputs)

    def _check_other(self, method: str, other: object) -> None:
        """Raise a `GraphError` unless `other` is a stream of the same environment."""
        if not isinstance(other, DataStream):
            raise GraphError(f"{method} takes a stream, not {other!r}")
        if other._environment is not self._environment:
            raise GraphError(f"{method} takes a stream of the same environment, and got another")


class CachedDataStream(DataStream[T_co]):
    """A stream whose records are stored when it is first executed. (PyFlink: `CachedDataStream`.)

    Arguments:
        environment: the environment that the stream belongs to.
        output: the output of the cached operator.
        records: the stored records.

    Examples:
        >>> cached = env.from_collection([1, 2]).map(lambda n: n + 1).cache()
        >>> list(cached.execute_and_collect()), list(cached.execute_and_collect())
        ([2, 3], [2, 3])
    """

    def __init__(
        self, environment: BaseEnvironment, output: OperatorOutput, records: StoredRecords
    ) -> None:
        super().__init__(environment, [output])
        self._records = records

    def invalidate(self) -> None:
        """Forget the stored records. The next execution computes and stores them again."""
        self._records.invalidate()


def _first(records: CloseableIterator[T], limit: int) -> list[T]:
    with records:
        return list(islice(records, limit))


def _same(record: UserValue) -> UserValue:
    return record
