"""Describe an as-of join: a record is joined with the version of a value at its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import JoinFunction, check_function, check_methods
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.windows.window_settings import own

__all__ = ["AsOfJoinOperation", "as_of_join_operation"]


@dataclass
class AsOfJoinOperation:
    """The function of an as-of join and its settings; the `function` of its operator.

    Arguments:
        function: a `JoinFunction`, or a function `(record, version)`.
        keep_unmatched: whether the function is called with None for a record without a version.
        late_tag: the tag of the side output for late records; None drops them.
    """

    needs_event_time: ClassVar[bool] = True

    function: Any
    keep_unmatched: bool
    late_tag: OutputTag | None


def as_of_join_operation(how: str, function: Any, late_tag: Any) -> AsOfJoinOperation:
    """Return the operation of an as-of join; see `KeyedStreamJoins.as_of_join`.

    Raises:
        GraphError: if an argument is wrong.
    """
    if how not in ("inner", "left"):
        raise GraphError(f"how is 'inner' or 'left', not {how!r}")
    if late_tag is not None and not isinstance(late_tag, OutputTag):
        raise GraphError(
            f"late_tag is an OutputTag, not {late_tag!r}: write OutputTag({str(late_tag)!r})"
        )
    checked = check_function(_pair if function is None else own(function), JoinFunction, "function")
    check_methods(checked)
    return AsOfJoinOperation(checked, how == "left", late_tag)


def _pair(record: Any, version: Any) -> Any:
    return record, version
