"""Choose the snapshot protocol of a task."""

from __future__ import annotations

from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.runtime.network.input_gate import InputGate
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.base import SnapshotProtocol
from penstock.snapshot.protocols.synchronous import SynchronousProtocol
from penstock.snapshot.protocols.unaligned import UnalignedProtocol


def snapshot_protocol(config: JobConfig, gate: InputGate) -> SnapshotProtocol:
    """Return the protocol of a task, for the checkpointing mode and the loops of the job."""
    inputs, back_edges = gate.channels, gate.back_edges
    match config.checkpointing_mode:
        case CheckpointingMode.AT_LEAST_ONCE:
            return AtLeastOnceProtocol(inputs, back_edges)
        case CheckpointingMode.SYNCHRONOUS:
            return SynchronousProtocol(inputs, back_edges)
        case CheckpointingMode.UNALIGNED:
            align_first = config.aligned_checkpoint_timeout_seconds > 0
            broadcast = Partitioning.BROADCAST.value
            aligned = {
                id
                for id, channel in gate.recorded.items()
                if id not in back_edges and channel.edge.partitioning == broadcast
            }
            return UnalignedProtocol(inputs, back_edges, aligned=aligned, align_first=align_first)
    if back_edges:
        return AlignedCyclicProtocol(inputs, back_edges)
    return AlignedProtocol(inputs)
