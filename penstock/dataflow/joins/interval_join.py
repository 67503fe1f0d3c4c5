"""Describe an interval join: each record is joined with records of nearby event times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.output_tag import OutputTag

__all__ = ["IntervalJoinOperation"]


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
    function: Any
    late_tags: tuple[OutputTag | None, OutputTag | None] = (None, None)
