"""The snapshot from which an attempt starts, and the handles that a task restores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.snapshot.metadata.handles import OperatorHandle, StateMode
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.decoding import Decoding
from penstock.snapshot.storage.job_paths import JobPaths


@dataclass(frozen=True)
class RestoredSnapshot:
    """A snapshot that an attempt restores.

    Arguments:
        manifest: the manifest of the snapshot.
        paths: the paths inside the job folder that contains the snapshot's files.
    """

    manifest: Manifest
    paths: JobPaths

    @property
    def log_records(self) -> int:
        """Return the number of records in the in-flight logs of the snapshot."""
        return sum(log.records for handle in self.manifest.handles for log in handle.logs)

    def require_finished(self) -> None:
        """Check that a job in batch mode does not resume in the middle of its input.

        Raise `GraphError` otherwise.
        """
        if not self.manifest.finished:
            raise GraphError(
                f"a job in batch mode reads all of its input, and cannot resume from snapshot "
                f"{self.manifest.number}, which was taken in the middle: run it without "
                f"--resume, or in streaming mode"
            )

    def handles_for(self, plan: ExecutionGraph, slot: int) -> dict[str, list[Any]]:
        """Return the handles that each task of a slot restores, keyed by "chain:subtask".

        Each handle is a list [folder, handle, rescaled, producers, version]. `folder` is the folder
        of the snapshot, `rescaled` is whether the operator's parallelism or the version of its keys
        has changed, `producers` are the uids of the producers of its logs whose parallelism has
        changed, and `version` is the version of its keys in the snapshot.
        """
        folder = str(self.paths.snapshot(self.manifest.number))
        result: dict[str, list[Any]] = {}
        before = {entry.uid: entry.parallelism for entry in self.manifest.operators}
        versions = {entry.uid: entry.key_version for entry in self.manifest.operators}
        changed_uids = {
            info.uid
            for info in plan.operators
            if before.get(info.uid, info.parallelism) != info.parallelism
        }
        for number, subtask in plan.tasks_of(slot):
            chain = plan.chains[number]
            mine: list[Any] = []
            for node in chain.root.walk():
                info = node.operator
                handles = [h for h in self.manifest.handles if h.uid == info.uid]
                version = versions.get(info.uid, info.key_version)
                changed = bool(handles) and (
                    rescaled(self.manifest, info.uid, info.parallelism)
                    or version != info.key_version
                )
                if not changed:
                    # If the parallelism has changed, each task gets all handles, and selects its
                    # key groups and its records of the logs.
                    handles = [part for h in handles for part in _own_part(h, subtask)]
                if info.uid in self.manifest.enumerators:
                    splits = assigned_splits(self.manifest, info.uid, info.parallelism)[subtask]
                    first, *others = handles or [OperatorHandle(info.uid, subtask)]
                    handles = [replace(first, small=splits)]
                    handles += [replace(other, small=None) for other in others]
                for handle in handles:
                    producers = {log.producer for log in handle.logs} & changed_uids
                    mine.append([folder, handle.to_wire(), changed, sorted(producers), version])
            if mine:
                result[f"{chain.id}:{subtask}"] = mine
        return result


def _own_part(handle: OperatorHandle, subtask: int) -> Iterator[OperatorHandle]:
    """Yield the part of a handle that a task restores if the parallelism has not changed."""
    if handle.subtask == subtask:
        yield handle
    elif (state := handle.operator_state) is not None and any(
        entry.mode is StateMode.UNION for entry in state.states
    ):
        # Every subtask gets the union lists of all subtasks.
        yield OperatorHandle(handle.uid, handle.subtask, operator_state=state)


def require_splits(manifest: Manifest, paths: JobPaths) -> None:
    """Check that the splits of all sources have the form in which a source stores them.

    Raise a `StoreError` that names the source if they have another form.
    """
    names = {entry.uid: entry.name for entry in manifest.operators}
    folder = paths.snapshot(manifest.number)
    states: dict[str, Any] = manifest.enumerators
    for uid, state in states.items():
        with Decoding(f"the splits of source {names.get(uid, uid)!r}", folder):
            splits = [*state.get("begun", ())]
            state["enumerator"]
            for handle in manifest.handles:
                if handle.uid == uid and handle.small is not None:
                    splits += handle.small
            for id, _, _ in splits:
                if not isinstance(id, str):
                    raise ValueError(f"the id of a split is {id!r}")


def assigned_splits(manifest: Manifest, uid: str, parallelism: int) -> list[list[Any]]:
    """Return the unfinished splits of a source that each subtask restores.

    A split is a list of its id, its payload and its position. If the parallelism has changed, the
    subtasks share all splits. They get them before they read, since a split without a reader would
    not hold the watermark, and its records would be late.

    Raise `GraphError` if the snapshot has no operator with this uid.
    """
    before = {h.subtask: h.small for h in manifest.handles if h.uid == uid and h.small}
    # Older versions assigned the splits of a rescaled source one by one, when tasks requested them.
    state: Any = manifest.enumerators[uid]
    unassigned = [*state.get("begun", ())]
    if rescaled(manifest, uid, parallelism):
        unassigned = [split for subtask in sorted(before) for split in before[subtask]] + unassigned
        before = {}
    assigned = [[*before.get(subtask, ())] for subtask in range(parallelism)]
    for number, split in enumerate(unassigned):
        assigned[number % parallelism].append(split)
    return assigned


def rescaled(manifest: Manifest, uid: str, parallelism: int) -> bool:
    """Return whether an operator had another parallelism in a snapshot than now.

    Raise `GraphError` if the snapshot has no operator with this uid.
    """
    for entry in manifest.operators:
        if entry.uid == uid:
            return entry.parallelism != parallelism
    raise GraphError(f"the snapshot knows no operator with the uid {uid!r}")


def input_positions(manifest: Manifest) -> str:
    """Return a text that is equal for two snapshots if no input was read between them."""
    readers = sorted(
        (handle.uid, handle.subtask, repr(handle.small))
        for handle in manifest.handles
        if handle.uid in manifest.enumerators
    )
    return repr((sorted(manifest.enumerators.items()), readers))
