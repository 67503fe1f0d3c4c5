"""The data that one attempt deploys on its workers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot


@dataclass(frozen=True)
class Rejoining:
    """Describes where and for how long workers wait for the next JobManager.

    Arguments:
        address, token: the address and the secret of the supervisor's `Rendezvous`.
        seconds: the time that the next JobManager has, in seconds.
    """

    address: str
    token: bytes
    seconds: float


@dataclass(frozen=True)
class Deployment:
    """The data with which one attempt runs a job.

    Arguments:
        number: the number of the attempt: the first of the snapshot numbers that are reserved for
            it. It is higher than the number of every earlier attempt. An earlier run may have been
            killed, and its workers may still write for a while. Different numbers keep folders and
            staged files apart.
        ordinal: the number of restarts of this run before the attempt.
        code, packed_code: the job's code, and the same code as `job_code.pack` returns it.
        plan: the execution graph, in which only the chains of one region may run.
        types: the schema of each record class, as `RecordSchema.to_wire` returns it.
        restored: the snapshot to start from; None starts from the beginning of the input.
        lineage: the lineage of the run's snapshots.
        root: the path of the job's folder.
        keep: whether snapshots hold state.
        allow_dropped: whether restored states that the program no longer has are dropped.
        interval: the seconds between two checkpoints; None takes no periodic checkpoints.
        missing_slots: the number of slots that the job asks for beyond those of the plan. Their
            workers could not be started.
        python_files: the Python files of the job, as `pack_files` returns them.
        python: the interpreter of the workers; None stands for the JobManager's own.
        rejoin: where workers wait for the next JobManager if this one dies; None if they then end.
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
    allow_dropped: bool
    interval: float | None
    missing_slots: int = 0
    python_files: bytes = b""
    python: str | None = None
    rejoin: Rejoining | None = None

    @property
    def region(self) -> str:
        """Return the name of the region that the plan runs: that of its first chain."""
        first = self.plan.running_chains[0]
        alike = sum(chain.name == first.name for chain in self.plan.chains)
        return first.name if alike == 1 else f"{first.name} (chain {first.id})"

    @property
    def config(self) -> JobConfig:
        """Return the configuration of the job."""
        return self.code.config

    def messages(
        self,
        addresses: Sequence[str],
        running: Sequence[int] = (),
        steps: Mapping[tuple[int, int], list[Any]] = MappingProxyType({}),
    ) -> list[m.Deploy]:
        """Return the `Deploy` message for each worker, in the order of the slots.

        Arguments:
            addresses: the address of each worker for data connections, in the same order.
            running: the slots whose workers already run.
            steps: for some tasks, the number of steps before those that they repeat, and these;
                each task has a slot of its own then.
        """
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
                None if self.restored is None else self.restored.manifest.number,
                self.allow_dropped,
                self.python_files,
                [*running],
                steps.get(self.plan.tasks_of(slot)[0], []),
            )
            for slot in range(self.plan.slots)
        ]


def deployed_plan(plan: bytes) -> ExecutionGraph:
    """Return the execution graph in a `Deploy` message, which a worker has kept."""
    graph: ExecutionGraph = pickle.loads(plan)
    return graph
