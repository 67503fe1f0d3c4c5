"""Check the arguments of an as-of join."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import JoinFunction, check_function, check_methods
from penstock.dataflow.joins.as_of_join import AsOfJoinOperation
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.windows.window_settings import own

__all__ = ["as_of_join_operation"]


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
