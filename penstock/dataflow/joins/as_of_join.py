"""Describe an as-of join: each record is joined with the version that is valid at its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.output_tag import OutputTag

__all__ = ["AsOfJoinOperation"]


@dataclass
class AsOfJoinOperation:
    """The function of an as-of join and its settings; the `function` of its operator.

    Arguments:
        function: a `JoinFunction`, or a function `(record, version)`.
        keep_unmatched: whether the function is called with None for a record without a version.
        late_tag: the tag of the side output for late records; None drops them.
    """

    function: Any
    keep_unmatched: bool
    late_tag: OutputTag | None
