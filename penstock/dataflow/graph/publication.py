"""Check that the output of a program can be published, and its input acknowledged."""

from __future__ import annotations

from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.sink import Sink


def check_publication(graph: JobGraph, config: JobConfig) -> None:
    """Check that a job takes snapshots if its sinks publish with them and it never ends.

    Such a sink publishes its output when a snapshot is complete, or else at the end of the job. A
    source that acknowledges its input with snapshots needs them in any case.

    Raises:
        GraphError: if the sink would never publish anything, or the source never acknowledge.
    """
    takes_none = config.checkpointing_mode is CheckpointingMode.NONE
    if config.checkpoint_interval_seconds is not None and not takes_none:
        return
    endless = [
        operator.name
        for operator in graph.running
        if operator.spec.is_source and not operator.function.ends
    ]
    waiting = [
        operator.name
        for operator in graph.running
        if operator.spec.is_sink and _publishes_with_snapshots(operator.function)
    ]
    unacknowledged = [
        operator.name
        for operator in graph.running
        if operator.spec.is_source and operator.function.acknowledges
    ]
    why = "its checkpointing mode is NONE" if takes_none else "it has no checkpoint interval"
    if unacknowledged:
        raise GraphError(
            f"{unacknowledged[0]!r} acknowledges its input with snapshots, and the job takes none, "
            f"because {why}: call env.enable_checkpointing(10_000), or give --checkpoint-interval "
            f"10s"
        )
    if endless and waiting:
        raise GraphError(
            f"{waiting[0]!r} publishes its output with snapshots, and the job takes none, because "
            f"{why}. As {endless[0]!r} never ends, nothing would ever be published: call "
            f"env.enable_checkpointing(10_000), or give --checkpoint-interval 10s"
        )


def _publishes_with_snapshots(sink: Sink) -> bool:
    return sink.exactly_once or type(sink).create_committer is not Sink.create_committer
