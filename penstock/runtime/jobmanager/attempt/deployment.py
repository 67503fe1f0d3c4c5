"""The job as one attempt deploys it on its workers."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot

__all__ = ["Deployment"]


@dataclass(frozen=True)
class Deployment:
    """A job as one attempt runs it.

    Arguments:
        number: of the attempt: the first of the snapshot numbers that are reserved for it. It is
            higher than that of every attempt before, also of runs that were killed and whose
            workers may still be about to notice. So folders and staged files never collide.
        ordinal: the number of restarts of this run before the attempt.
        code, packed_code: the job's code.
        plan: the execution graph.
        types: `RecordSchema.to_wire` of each record class.
        restored: the snapshot to start from; None starts from the beginning of the input.
        lineage: of the snapshots of the run.
        root: the folder of the job.
        keep: whether snapshots hold state.
        interval: seconds between checkpoints; None takes none by the clock.
    """

    number: int
    ordinal: int
    code: JobCode
    packed_code: bytes
    plan: ExecutionGraph
    types: list[Any]
    restored: RestoredSnapshot | None
    lineage: str
    root: str
    keep: bool
    interval: float | None

    @property
    def config(self) -> JobConfig:
        """Return the configuration of the job."""
        return self.code.config

    def messages(self, addresses: Sequence[str]) -> list[m.Deploy]:
        """Return the message for each worker, given where their data channels listen."""
        plan = pickle.dumps(self.plan)
        return [
            m.Deploy(
                self.number,
                self.ordinal,
                self.packed_code,
                plan,
                self.types,
                list(addresses),
                {} if self.restored is None else self.restored.handles_for(self.plan, slot),
                self.lineage,
                self.root,
                self.keep,
            )
            for slot in range(self.plan.slots)
        ]
