"""Compare the operators and edges of an execution graph with those of a snapshot."""

from __future__ import annotations

from dataclasses import replace

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import operator_entries
from penstock.snapshot.coordination.compatibility import Difference, Verdict
from penstock.snapshot.coordination.graph_compatibility import compare_graph
from penstock.snapshot.metadata.handles import OWN_INPUT
from penstock.snapshot.metadata.manifest import Manifest


def graph_differences(plan: ExecutionGraph, manifest: Manifest) -> list[Difference]:
    """Return the differences between a graph and a snapshot that affect state.

    The states of an operator are compared later, when it is open.

    Arguments:
        plan: the execution graph.
        manifest: the manifest of the snapshot, with the present uids of renamed operators.
    """
    chains = plan.chains
    edges = [(link.producer, link.consumer, link.input, link.partitioning) for link in plan.links]
    # Records that a source has read but not emitted are restored into the source itself. They
    # count as records on an edge from the source to itself.
    sources = [chain.root.operator.uid for chain in chains if chain.is_source]
    edges += [(uid, uid, OWN_INPUT, Partitioning.REBALANCE) for uid in sources]
    hooks = [
        [node.operator.uid for node in chain.root.walk() if node.operator.has_end_input]
        for chain in chains
    ]
    found = compare_graph(manifest, operator_entries(plan), edges, hooks)
    migrates = {info.uid for info in plan.operators if info.migrates_keys}
    return [
        one
        if one.verdict is not Verdict.REKEYED or one.uid in migrates
        else replace(
            one,
            verdict=Verdict.REFUSED,
            reason=f"{one.reason}: give its VersionedKeySelector a function that converts them, "
            f"migrate_key=...",
        )
        for one in found
    ]
