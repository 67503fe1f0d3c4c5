"""The streams that `group_by` returns, and the methods of streams for columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.columns.aggregates import (
    ColumnAggregation,
    check_window,
    parse_aggregates,
)
from penstock.dataflow.columns.arrow import require_pyarrow
from penstock.dataflow.columns.batch_function import BatchFunction, BatchOperation
from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.output_tag import OutputTag, check_output_tag
from penstock.dataflow.streams.building import add_column_aggregation, add_map_batches
from penstock.dataflow.type_variables import S_co
from penstock.dataflow.windows import WindowAssigner, WindowOperation

__all__ = ["GroupedStream", "StreamColumns", "WindowedGroups"]

#: Adds the operator of an aggregation, given its name, and returns a stream with its output.
_Add = Callable[[str, ColumnAggregation], Any]


class StreamColumns(Generic[S_co]):
    """Adds the stream methods that work on columns. `docs/guides/columns.md` is the guide."""

    def map_batches(
        self,
        func: Callable[[Any], Any] | BatchFunction,
        format: str = "arrow",
        *,
        keep_rows: bool = False,
        timestamps: str | None = None,
        schema: Any = None,
    ) -> S_co:
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
        return self._transform(add_map_batches, operation)

    def group_by(self, *columns: str) -> GroupedStream[S_co]:
        """Group the rows by columns, for aggregations that process whole columns.

            stream.group_by("user").agg(total=("amount", "sum"), n=("*", "count"))

        Rows with equal keys go to the same subtask.

        Arguments:
            columns: the names of the columns of the key.

        Raises:
            GraphError: if there is no name, or pyarrow is not installed.
        """
        require_pyarrow("group_by")
        key = ColumnKey(columns)

        def add(name: str, aggregation: ColumnAggregation) -> S_co:
            return self._transform(add_column_aggregation, key, name, aggregation)

        return GroupedStream(key.columns, add)

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> S_co:
        """Add an operator that reads this stream, and return a stream with its output."""


class GroupedStream(Generic[S_co]):
    """The rows of a stream, grouped by columns.

    Arguments:
        keys: the names of the columns of the key.
        add: adds the operator of an aggregation.
    """

    def __init__(self, keys: tuple[str, ...], add: _Add) -> None:
        self._keys = keys
        self._add = add

    def agg(self, **aggregates: tuple[str, str]) -> S_co:
        """Aggregate each group, and emit the updated aggregates after each row.

        An emitted row has the key and the aggregates of all rows of its group up to this row. In
        batch mode, each group has one row, which is emitted when the input has ended.

        Arguments:
            aggregates: a pair (column, function) for each column of the result. The functions are
                `count`, `sum`, `min`, `max` and `mean`. `("*", "count")` counts all rows; the other
                functions ignore nulls.

        Raises:
            GraphError: if an aggregate is wrong.
        """
        return self._aggregate(aggregates)

    def window(self, window_assigner: WindowAssigner) -> WindowedGroups[S_co]:
        """Group the rows also by windows.

        Arguments:
            window_assigner: tumbling or sliding windows, or sessions with a fixed gap, by event
                time or by processing time.

        Raises:
            GraphError: if `window_assigner` is another assigner.
        """
        return WindowedGroups(self._keys, check_window(window_assigner), self._add)

    def _aggregate(self, aggregates: Mapping[str, Any]) -> S_co:
        parsed = parse_aggregates(self._keys, aggregates, windowed=False)
        stream: S_co = self._add("Aggregate Columns", ColumnAggregation(self._keys, parsed))
        return stream


class WindowedGroups(PyFlinkNames, Generic[S_co]):
    """The rows of a stream, grouped by columns and windows.

    Arguments:
        keys: the names of the columns of the key.
        assigner: the windows.
        add: adds the operator of an aggregation.
    """

    _missing: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("trigger", "evictor", "reduce", "aggregate", "apply", "process"),
        "use key_by(...).window(...), which works on rows",
    )

    def __init__(self, keys: tuple[str, ...], assigner: WindowAssigner, add: _Add) -> None:
        self._keys, self._assigner = keys, assigner
        self._add = add
        self._allowed_lateness = 0
        self._late_tag: OutputTag[Any] | None = None

    def allowed_lateness(self, time_ms: DurationLike) -> Self:
        """Set how long after its end a window still accepts late rows.

        Each such row fires the window of its group again. The default is 0. Windows by processing
        time have no late rows.

        Arguments:
            time_ms: the time in milliseconds, as a `timedelta` or as a `Time`.
        """
        self._allowed_lateness = milliseconds_of("allowed_lateness", time_ms)
        return self

    def side_output_late_data(self, output_tag: OutputTag[Any]) -> Self:
        """Emit rows that are too late for their windows to a side output.

        Without a side output, they are dropped. Call `get_side_output(output_tag)` on the result of
        `agg`. Its records are the rows as they came: dicts, if they came in columns.

        Raises:
            GraphError: if `output_tag` is not an `OutputTag`.
        """
        self._late_tag = check_output_tag("side_output_late_data", output_tag)
        return self

    def agg(self, **aggregates: tuple[str, str]) -> S_co:
        """Aggregate each group, and emit one row for each group when its window ends.

        An emitted row has the key, the columns `window_start` and `window_end` (milliseconds since
        the epoch), and the aggregates. Its event time is the last one of the window.

        Arguments:
            aggregates: as for `GroupedStream.agg`.

        Raises:
            GraphError: if an aggregate is wrong.
        """
        parsed = parse_aggregates(self._keys, aggregates, windowed=True)
        name = f"Aggregate Columns: {type(self._assigner).__name__}"
        window = WindowOperation(
            self._assigner,
            self._assigner.get_default_trigger(),
            allowed_lateness=self._allowed_lateness,
            late_tag=self._late_tag,
        )
        stream: S_co = self._add(name, ColumnAggregation(self._keys, parsed, window))
        return stream
