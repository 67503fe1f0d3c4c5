"""Check that the program reads the side outputs to which late records go."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph

__all__ = ["check_late_outputs"]


def check_late_outputs(graph: JobGraph) -> None:
    """Check that each side output for late records is read.

    Otherwise the operator would drop the records that the program wants to keep.

    Raises:
        GraphError: if the program has not called `get_side_output` for such a side output.
    """
    for operator in graph.running:
        for tag in operator.spec.late_tags:
            if tag is not None and tag.tag_id not in operator.side_outputs:
                raise GraphError(
                    f"operator {operator.name!r} sends late records to the side output "
                    f"{tag.tag_id!r}, and the program does not read it: call "
                    f"get_side_output({tag!r}) on the stream of its results. Without a side "
                    f"output, late records are dropped and counted"
                )
