"""Describe the tasks that one slot runs. (Flink: `TaskDeploymentDescriptor`.)"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.graph.execution_graph import Chain, ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.control.job_code import JobCode, unpack
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.storage.job_paths import JobPaths


class RestoredHandle(NamedTuple):
    """A handle that a task restores.

    Arguments:
        folder: the folder of the snapshot.
        handle: the handle.
        rescaled: whether the parallelism of the operator, or the version of its keys, has changed.
        producers: the uids of the producers of its logs whose parallelism has changed.
        key_version: the version of the operator's keys in the snapshot.
    """

    folder: Path
    handle: OperatorHandle
    rescaled: bool
    producers: list[str]
    key_version: int


@dataclass(frozen=True)
class DeploymentDescriptor:
    """Describes the tasks of one slot, with all data that is needed to create them.

    Arguments:
        code: the code of the job, with its execution graph.
        slot: the index of the slot.
        attempt: the number of the execution attempt, which is unique within the job.
        ordinal: the number of restarts of the job in this run.
        lineage: the lineage of the run's snapshots.
        root: the job's folder, for its state and snapshots.
        keep: whether snapshots contain the state of operators.
        codec: encodes records and state.
        restored: the number of the snapshot that is restored, or None.
        allow_dropped: whether restored states that the program no longer has are dropped.
        handles: the operator handles for each task, as in the `Deploy` message.
        steps: the number of steps before those that the task repeats, and these steps; empty if
            there are none. See `penstock.runtime.network.step_logs`.
    """

    code: JobCode
    slot: int
    attempt: int
    ordinal: int
    lineage: str
    root: Path
    keep: bool
    codec: Codec
    restored: int | None = None
    allow_dropped: bool = False
    handles: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: Sequence[Any] = ()

    @classmethod
    def unpack(cls, deploy: m.Deploy, slot: int) -> DeploymentDescriptor:
        """Return the descriptor that a message of the JobManager contains.

        Arguments:
            deploy: the message that requests the deployment.
            slot: the index of the slot.
        """
        code = unpack(deploy.code)
        schemas = map(RecordSchema.from_wire, deploy.types)
        return cls(
            replace(code, plan=pickle.loads(deploy.plan)),
            slot,
            deploy.attempt,
            deploy.ordinal,
            deploy.lineage,
            Path(deploy.root),
            deploy.keep,
            Codec(TypeRegistry(code.types).extending(schemas)),
            deploy.restored,
            deploy.allow_dropped,
            deploy.handles,
            deploy.steps,
        )

    @property
    def plan(self) -> ExecutionGraph:
        """The job's execution graph."""
        assert self.code.plan is not None
        return self.code.plan

    @cached_property
    def restored_handles(self) -> dict[str, list[RestoredHandle]]:
        """The handles that each task restores, keyed by "chain:subtask"."""
        return {
            task: [
                RestoredHandle(
                    Path(folder), OperatorHandle.from_wire(wire), rescaled, producers, version
                )
                for folder, wire, rescaled, producers, version in handles
            ]
            for task, handles in self.handles.items()
        }

    @cached_property
    def restored_states(self) -> dict[str, set[str]]:
        """The names of the restored keyed states of each operator, by uid."""
        names: dict[str, set[str]] = {}
        for restored in self.restored_handles.values():
            for _, handle, *_ in restored:
                if handle.keyed is not None:
                    names.setdefault(handle.uid, set()).update(handle.keyed.states)
        return names

    @property
    def config(self) -> JobConfig:
        """The job's configuration."""
        return self.code.config

    @cached_property
    def paths(self) -> JobPaths:
        """The paths of the files in the job's folder."""
        return JobPaths(self.root)

    @cached_property
    def chains(self) -> list[Chain]:
        """The chains that have a subtask in this slot."""
        return [self.plan.chains[chain] for chain, _ in self.plan.tasks_of(self.slot)]

    @cached_property
    def subtask(self) -> int:
        """The index that all subtasks of this slot have."""
        return self.plan.tasks_of(self.slot)[0][1]

    @property
    def unaligned(self) -> bool:
        """Whether barriers may overtake records."""
        return self.config.checkpointing_mode is CheckpointingMode.UNALIGNED
