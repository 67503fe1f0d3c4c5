"""Describe joins: each class has what the operator of one join needs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.functions import KeySelectorLike
from penstock.dataflow.joins.static_table import StaticTable
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.type_variables import UserValue


@dataclass
class AsOfJoinOperation:
    """The function of an as-of join and its settings; the `function` of its operator.

    Arguments:
        function: a `JoinFunction`, or a function `(record, version)`.
        keep_unmatched: whether the function is called with None for a record without a version.
        late_tag: the tag of the side output for late records; None drops them.
    """

    function: UserValue
    keep_unmatched: bool
    late_tag: OutputTag | None


@dataclass
class IntervalJoinOperation:
    """The bounds and the function of an interval join; the `function` of its operator.

    A left record and a right record are joined if the timestamp of the right record minus that of
    the left record is from `lower` to `upper`.

    Arguments:
        lower: the smallest difference, in milliseconds.
        upper: the largest difference, in milliseconds, which is at least `lower`.
        function: a `ProcessJoinFunction`, or a function `(left, right)` that returns one record.
        late_tags: the tags of the side outputs for late records of the left and of the right
            stream. None drops them.
    """

    lower: int
    upper: int
    function: UserValue
    late_tags: tuple[OutputTag | None, OutputTag | None] = (None, None)


@dataclass
class TableJoinOperation:
    """A table and how a stream is joined with it; the `function` of the operator.

    Arguments:
        table: the table.
        key_selector: returns the key of a record.
        function: a `JoinFunction`, or a function `(record, row)`.
        keep_unmatched: whether the function is called with the row None for a record without a row.
        reload_ms: the time after which the table is loaded again, in milliseconds; None for never.
    """

    table: StaticTable
    key_selector: KeySelectorLike
    function: UserValue
    keep_unmatched: bool
    reload_ms: int | None
