"""Find the side output of a stream's operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import OperatorOutput, Partitioning
from penstock.dataflow.output_tag import OutputTag, check_output_tag

__all__ = ["side_output_of"]


def side_output_of(outputs: Sequence[OperatorOutput], tag: OutputTag) -> OperatorOutput:
    """Return a side output of the operator that has the given main output.

    Arguments:
        outputs: the outputs of the stream whose operator emits to the side output.
        tag: the tag of the side output.

    Raises:
        GraphError: if `tag` is no `OutputTag`, or if no single operator with side outputs makes the
            stream.
    """
    check_output_tag("get_side_output", tag)
    if len(outputs) != 1 or outputs[0].partitioning not in (None, Partitioning.FORWARD):
        raise GraphError(
            f"get_side_output({tag!r}) belongs right after the operator that emits to it, not "
            f"after a union, a key_by or another change of partitioning"
        )
    operator = outputs[0].operator
    if outputs[0].tag is not None or not operator.kind.has_side_outputs:
        what = "a side output" if outputs[0].tag is not None else f"a {operator.kind.value}"
        raise GraphError(
            f"get_side_output({tag!r}) was called on {operator.name!r}, which is {what} and has "
            f"no side outputs: call it on the result of process(...) or of a window"
        )
    function = operator.function
    if isinstance(function, ColumnAggregation) and not function.has_side_outputs:
        raise GraphError(
            f"get_side_output({tag!r}) was called on {operator.name!r}, which has no side outputs: "
            f"its only one would be that of late rows, which side_output_late_data sets on windows"
        )
    operator.declare_side_output(tag.tag_id)
    return replace(outputs[0], tag=tag.tag_id)
