"""Describe aggregations over columns: the values that `agg` computes for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows import (
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowOperation,
)

#: The functions of `agg`. They ignore nulls, except that `count` of `*` counts all rows.
AGGREGATES = ("count", "sum", "min", "max", "mean")
#: The column name that stands for whole rows.
ALL = "*"
_WINDOW_COLUMNS = ("window_start", "window_end")
_SLIDING = (SlidingEventTimeWindows, SlidingProcessingTimeWindows)
#: The window assigners of aggregations over columns.
WINDOWS = (
    TumblingEventTimeWindows,
    SlidingEventTimeWindows,
    EventTimeSessionWindows,
    TumblingProcessingTimeWindows,
    SlidingProcessingTimeWindows,
    ProcessingTimeSessionWindows,
)


@dataclass(frozen=True)
class Aggregate:
    """One column of the result of an aggregation.

    Arguments:
        name: the name of the column in the result.
        function: one of `AGGREGATES`.
        column: the column whose values are combined; `*` to count all rows.
    """

    name: str
    function: str
    column: str


@dataclass(frozen=True)
class ColumnAggregation:
    """An aggregation over columns, which an operator runs.

    Arguments:
        keys: the columns of the key.
        aggregates: the values that are computed for each group.
        window: the windows, without functions; None for running aggregates.
    """

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    window: WindowOperation | None = None

    @property
    def assigner(self) -> UserValue:
        """The window assigner; None for running aggregates."""
        return None if self.window is None else self.window.assigner

    @property
    def in_arrays(self) -> bool:
        """Whether the groups of the windows are kept in arrays."""
        window = self.window
        kinds = TumblingEventTimeWindows, SlidingEventTimeWindows
        return (
            window is not None
            and isinstance(window.assigner, kinds)
            and not window.allowed_lateness
        )

    @property
    def has_side_outputs(self) -> bool:
        """Whether late rows go to a side output, which is the only one."""
        return self.window is not None and self.window.late_tag is not None


def parse_aggregates(
    keys: Sequence[str], given: Mapping[str, object], windowed: bool
) -> tuple[Aggregate, ...]:
    """Return the aggregates that the arguments of `agg` describe.

    Arguments:
        keys: the columns of the key.
        given: a pair (column, function) for the name of each column of the result.
        windowed: whether the result also has the columns of the window.

    Raises:
        GraphError: if there is no argument, or one is wrong.
    """
    if not given:
        raise GraphError('agg needs an aggregate: agg(total=("amount", "sum"), n=("*", "count"))')
    taken = {*keys, *(_WINDOW_COLUMNS if windowed else ())}
    aggregates = []
    for name, pair in given.items():
        if name in taken:
            raise GraphError(f"agg has a column {name!r} already: give the aggregate another name")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise GraphError(
                f"the aggregate {name!r} is a pair of a column and a function, such as "
                f'("amount", "sum"), not {pair!r}'
            )
        column, function = pair
        if function not in AGGREGATES:
            raise GraphError(
                f"the function of the aggregate {name!r} is one of {', '.join(AGGREGATES)}, "
                f"not {function!r}"
            )
        if not isinstance(column, str) or not column:
            raise GraphError(f"the aggregate {name!r} needs the name of a column, not {column!r}")
        if column == ALL and function != "count":
            raise GraphError(f'"*" is only counted: the aggregate {name!r} needs a column')
        aggregates.append(Aggregate(name, function, column))
    return tuple(aggregates)


def check_window(assigner: object) -> WindowAssigner:
    """Return the window assigner of an aggregation over columns.

    Raises:
        GraphError: if it is of another class than `WINDOWS`, or its windows have gaps.
    """
    if type(assigner) not in WINDOWS:
        names = ", ".join(kind.__name__ for kind in WINDOWS)
        raise GraphError(
            f"group_by(...).window takes one of {names}, not {assigner!r}: for other windows, "
            f"triggers and evictors, use key_by(...).window(...), which works on rows"
        )
    assert isinstance(assigner, WINDOWS)
    if isinstance(assigner, _SLIDING) and assigner.slide > assigner.size:
        raise GraphError(f"{assigner!r} has gaps: the slide is longer than the size")
    return assigner
