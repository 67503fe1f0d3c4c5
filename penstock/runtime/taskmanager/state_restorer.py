"""Restore the tasks of a slot from the snapshot that the JobManager has chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.functions import VersionedKeySelector
from penstock.dataflow.graph.job_graph import key_migration
from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.serialization.rekeying import Rekeying
from penstock.runtime.system.threads import Offload
from penstock.runtime.task.snapshots.background_work import Pause, drive
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.coordination.compatibility import require_compatible
from penstock.snapshot.coordination.state_compatibility import (
    compare_states,
    kinds_of_operator_states,
)
from penstock.snapshot.metadata.handles import EventTimeState, KeyedHandle, OperatorHandle
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.operator_state import (
    OperatorStateBackend,
    PackedState,
    read_operator_state,
    redistribute,
)
from penstock.snapshot.storage.decoding import Decoding


class StateRestorer:
    """Restores the state of each task of a slot from a snapshot.

    Arguments:
        descriptor: describes the tasks of the slot.
        offload: runs blocking calls in a thread.
        pause: lets other coroutines of the event loop run.
    """

    def __init__(
        self,
        descriptor: DeploymentDescriptor,
        offload: Offload,
        pause: Pause = trio.lowlevel.checkpoint,
    ) -> None:
        self._descriptor = descriptor
        self._handles = descriptor.restored_handles
        self._allow_dropped = descriptor.allow_dropped
        self._rescaled = {
            handle.uid
            for restored in self._handles.values()
            for _, handle, rescaled, _, _ in restored
            if rescaled
        }
        self._offload, self._pause = offload, pause
        self._names = {info.uid: info.name for info in descriptor.plan.operators}
        self._logs = LogReplayer(
            descriptor.code, descriptor.plan, descriptor.codec, descriptor.subtask
        )

    async def restore(self, task: Task) -> None:
        """Restore the state, the in-flight logs and the splits of a task.

        Must be called before the task is opened.
        """
        root = task.chain.root.operator.context.uid
        handles: dict[str, list[tuple[Path, OperatorHandle]]] = {}
        logs: list[RestoredLog] = []
        restored = self._handles.get(f"{task.id[0]}:{task.id[1]}", [])
        versions: dict[str, int] = {}
        for folder, handle, rescaled, producers, version in restored:
            versions[handle.uid] = version
            handles.setdefault(handle.uid, []).append((folder, handle))
            if handle.uid == root:
                logs += [
                    RestoredLog(log, folder, rescaled, log.producer in producers)
                    for log in handle.logs
                ]
        self._restore_end_of_input(task, handles)
        task.event_time.restore({uid: _event_times(found) for uid, found in handles.items()})
        if logs:
            batches = self._logs.replay(task.id[0], task.gate, logs)
            task.gate.replay(batches, sum(one.log.size for one in logs))
        for uid, backend in task.backends.items():
            keyed = [(folder, h.keyed) for folder, h in handles.get(uid, []) if h.keyed is not None]
            if keyed:
                what = f"the keyed state of operator {self._names[uid]!r}, subtask {task.id[1]},"
                migration = self._key_migration(uid, versions[uid])
                with Decoding(what, keyed[0][0]):
                    if migration is None:
                        await drive(backend.restore(keyed), self._offload, self._pause)
                    else:
                        await self._migrate(migration, uid, backend, keyed)
        await self._restore_operator_state(task, handles)
        if task.source_input is not None:
            for _, handle in handles.get(root, []):
                if handle.small is not None:
                    task.source_input.restore(handle.small)
            if (watermarks := task.source_input.watermarks) is not None:
                watermarks.restore(task.event_time.valve.watermark)

    def _key_migration(self, uid: str, version: int) -> VersionedKeySelector | None:
        """Return what converts the restored keys of an operator; None if they stay as they are."""
        info = next(one for one in self._descriptor.plan.operators if one.uid == uid)
        if version == info.key_version:
            return None
        return key_migration(self._descriptor.code.graph, info.id)

    async def _migrate(
        self,
        migration: VersionedKeySelector,
        uid: str,
        backend: KeyedBackend,
        keyed: list[tuple[Path, KeyedHandle]],
    ) -> None:
        """Restore the state of all keys of an operator, and move the own ones to their new keys."""
        descriptor, groups = self._descriptor, self._descriptor.plan.max_parallelism
        name = self._names[uid]
        former = KeyedBackend(
            folder=backend.storage.folder / "former-keys",
            codec=descriptor.codec,
            canonical=canonical,
            max_parallelism=groups,
            groups=range(groups),
            engine=backend.storage.engine,
        )
        try:
            await drive(former.restore(keyed), self._offload, self._pause)
            for _, handle in keyed:
                for index, state in enumerate(handle.states):
                    backend.tables.declare_restored(handle, index, state)
            merge, migrate_key = migration.merge, migration.migrate_key
            assert migrate_key is not None

            def new_key(key: Any) -> Any:
                with calling(name, f"its key {key!r:.200} could not be converted"):
                    return migrate_key(key)

            def combine(state: str, one: Any, other: Any) -> Any:
                assert merge is not None
                with calling(name, f"values of its state {state!r} could not be combined"):
                    return merge(one, other)

            Rekeying(
                new_key,
                None if merge is None else combine,
                lambda _, table: (backend.tables.named(table.name), backend),
                lambda key: key_group(canonical(key), groups) in backend.groups,
                "give the VersionedKeySelector a function that combines them, merge=...",
            ).run([former])
        finally:
            former.close()

    def require_all_states(self, task: Task) -> None:
        """Check that a task has requested all restored states, or drop the others.

        Must be called after the task is opened, and before its first record. If a function
        requests some of its states later, the snapshot says so, and these states are kept.

        Raises:
            GraphError: if there are values of a state that the program no longer has, and the user
                did not allow to drop them.
        """
        for operator in task.chain.operators:
            context = operator.context
            found = _Unrequested()
            if context.backend is not None:
                found.add_keyed(context.backend)
            assert context.operator_state is not None
            found.add_operator_state(context.operator_state)
            differences = compare_states(context.uid, context.name, found.gone, found.new)
            require_compatible(differences, allow_dropped=self._allow_dropped)
            found.drop()

    async def _restore_operator_state(
        self, task: Task, handles: dict[str, list[tuple[Path, OperatorHandle]]]
    ) -> None:
        for operator in task.chain.operators:
            context = operator.context
            assert context.operator_state is not None
            before: dict[int, list[PackedState]] = {}
            for folder, handle in handles.get(context.uid, []):
                if handle.operator_state is not None:
                    read = partial(read_operator_state, handle.operator_state, folder)
                    before[handle.subtask] = await self._offload(read)
            context.operator_state.restore(
                redistribute(
                    before,
                    context.subtask,
                    context.parallelism,
                    rescaled=context.uid in self._rescaled,
                )
            )

    @staticmethod
    def _restore_end_of_input(
        task: Task, handles: dict[str, list[tuple[Path, OperatorHandle]]]
    ) -> None:
        # When the snapshot was taken, the first operator and the operators with a hook may have
        # been in different tasks. So the handles of all these operators are needed.
        uids = (task.chain.root.operator.context.uid, *task.end_of_input.hooked)
        ended = [handle for uid in uids for _, handle in handles.get(uid, []) if handle.ended]
        if ended:
            task.end_of_input.restore(
                max(handle.ended for handle in ended), any(handle.emitted for handle in ended)
            )


class _Unrequested:
    """The restored states of an operator that it has not requested, and its new states."""

    def __init__(self) -> None:
        #: The kind of each state that is gone, keyed by name. (Operator states have other kinds.)
        self.gone: dict[str, str] = {}
        #: The kind of each new state.
        self.new: dict[str, str] = {}
        self._drops: list[Callable[[], None]] = []

    def add_keyed(self, backend: KeyedBackend) -> None:
        """Add the keyed states."""
        gone, new = backend.end_opening()
        self.gone |= {table.name: table.kind.value for table in gone}
        self.new |= {table.name: table.kind.value for table in new}
        self._drops += [partial(backend.drop, table.name) for table in gone]

    def add_operator_state(self, backend: OperatorStateBackend) -> None:
        """Add the operator states."""
        gone, new = backend.end_opening()
        self.gone |= kinds_of_operator_states(gone)
        self.new |= kinds_of_operator_states(new)
        self._drops += [partial(backend.drop, name) for name in gone]

    def drop(self) -> None:
        """Remove the states that are gone, so that later snapshots do not have them."""
        for drop in self._drops:
            drop()


def _event_times(handles: list[tuple[Path, OperatorHandle]]) -> list[EventTimeState]:
    """Return the event time of each subtask of an operator, from all its handles.

    A subtask may have a second handle, with records that a barrier has overtaken.
    """
    found: dict[int, EventTimeState] = {}
    for _, handle in handles:
        if handle.event_time is not None:
            found[handle.subtask] = handle.event_time
        else:
            found.setdefault(handle.subtask, EventTimeState())
    return list(found.values())
