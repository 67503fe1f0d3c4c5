"""Define the streams that `group_by` returns: rows that are grouped by columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.columns.aggregates import (
    ColumnAggregation,
    check_window,
    parse_aggregates,
)
from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.output_tag import OutputTag, check_output_tag
from penstock.dataflow.streams.building import add_column_aggregation
from penstock.dataflow.windows import WindowAssigner, WindowOperation

if TYPE_CHECKING:
    from penstock.dataflow.streams.data_stream import DataStream


class GroupedStream:
    """The rows of a stream, grouped by columns. `docs/guides/columns.md` is the guide.

    Arguments:
        stream: the stream of the rows.
        key: the columns of the key.
    """

    def __init__(self, stream: DataStream, key: ColumnKey) -> None:
        self._stream = stream
        self._key = key

    def agg(self, **aggregates: tuple[str, str]) -> DataStream:
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
        return self._aggregate("Aggregate Columns", aggregates)

    def window(self, window_assigner: WindowAssigner) -> WindowedGroups:
        """Group the rows also by windows.

        Arguments:
            window_assigner: tumbling or sliding windows, or sessions with a fixed gap, by event
                time or by processing time.

        Raises:
            GraphError: if `window_assigner` is another assigner.
        """
        return WindowedGroups(self, check_window(window_assigner))

    def _aggregate(
        self, name: str, aggregates: Mapping[str, object], window: WindowOperation | None = None
    ) -> DataStream:
        """Add an operator that aggregates each group, or each group and window."""
        columns = self._key.columns
        parsed = parse_aggregates(columns, aggregates, windowed=window is not None)
        aggregation = ColumnAggregation(columns, parsed, window)
        output = add_column_aggregation(self._stream._input, self._key, name, aggregation)
        return self._stream._emitting(output)


class WindowedGroups(PyFlinkNames):
    """The rows of a stream, grouped by columns and windows.

    Arguments:
        groups: the rows, grouped by columns.
        assigner: the windows.
    """

    _missing: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("trigger", "evictor", "reduce", "aggregate", "apply", "process"),
        "use key_by(...).window(...), which works on rows",
    )

    def __init__(self, groups: GroupedStream, assigner: WindowAssigner) -> None:
        self._groups, self._assigner = groups, assigner
        self._allowed_lateness = 0
        self._late_tag: OutputTag | None = None

    def allowed_lateness(self, time_ms: DurationLike) -> Self:
        """Set how long after its end a window still accepts late rows.

        Each such row fires the window of its group again. The default is 0. Windows by processing
        time have no late rows.

        Arguments:
            time_ms: the time in milliseconds, as a `timedelta` or as a `Time`.
        """
        self._allowed_lateness = milliseconds_of("allowed_lateness", time_ms)
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Emit rows that are too late for their windows to a side output.

        Without a side output, they are dropped. Call `get_side_output(output_tag)` on the result of
        `agg`. Its records are the rows as they came: dicts, if they came in columns.

        Raises:
            GraphError: if `output_tag` is not an `OutputTag`.
        """
        self._late_tag = check_output_tag("side_output_late_data", output_tag)
        return self

    def agg(self, **aggregates: tuple[str, str]) -> DataStream:
        """Aggregate each group, and emit one row for each group when its window ends.

        An emitted row has the key, the columns `window_start` and `window_end` (milliseconds since
        the epoch), and the aggregates. Its event time is the last one of the window.

        Arguments:
            aggregates: as for `GroupedStream.agg`.

        Raises:
            GraphError: if an aggregate is wrong.
        """
        name = f"Aggregate Columns: {type(self._assigner).__name__}"
        window = WindowOperation(
            self._assigner,
            self._assigner.get_default_trigger(),
            allowed_lateness=self._allowed_lateness,
            late_tag=self._late_tag,
        )
        return self._groups._aggregate(name, aggregates, window)
