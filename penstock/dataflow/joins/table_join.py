"""Describe a join of a stream with a static table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.joins.static_table import StaticTable

__all__ = ["TableJoinOperation"]


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
    key_selector: Any
    function: Any
    keep_unmatched: bool
    reload_ms: int | None
